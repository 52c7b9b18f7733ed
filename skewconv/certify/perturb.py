"""Attacks by gradients: FGSM and PGD, in l2 and l-infinity, each image with its own radius; the functions attacked."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skewconv.certify.certifier import Certifier, margin_of
from skewconv.choices import AttackNorm
from skewconv.errors import ArgumentError, ShapeError, SkewconvError
from skewconv.nn.module_tools import unwrapped

Loss: TypeAlias = Literal["margin", "cross-entropy"]
Arithmetic: TypeAlias = Literal["model", "float64"]
Model: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class PGD:
    """Projected gradient ascent on the loss from random starts, inside the ball and inside [0, 1].

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    >>> x, t = torch.rand(3, 1, 2, 2), torch.tensor([0, 1, 0])
    >>> moved = PGD(steps=2, restarts=1)(model, x, t, torch.full((3,), 0.1))
    >>> bool((moved - x).flatten(1).norm(dim=1).max() <= 0.1001)
    True

    Arguments:
        norm: "l2" or "linf".
        steps, restarts: gradient steps of each start, and starts. The first start is the image itself if
            ``random_start`` is off.
        step_size: in shares of the radius; 2.5 / steps by default, at least 1/40 of it.
        random_start: start anywhere in the ball.
        seed: of the starts.
        loss: what climbs. Cross entropy has no gradient left where the model is sure; the margin always has one.
    """

    norm: AttackNorm = "l2"
    steps: int = 50
    restarts: int = 1
    step_size: float | None = None
    random_start: bool = True
    seed: int = 0
    loss: Loss = "margin"

    def __post_init__(self) -> None:
        if self.norm not in get_args(AttackNorm):
            raise ArgumentError(f"norm must be 'l2' or 'linf', got {self.norm!r}")
        if self.loss not in get_args(Loss):
            raise ArgumentError(f"loss must be 'margin' or 'cross-entropy', got {self.loss!r}")
        if self.steps < 1 or self.restarts < 1:
            raise ArgumentError(f"steps and restarts must be at least 1, got {self.steps} and {self.restarts}")
        if self.step_size is not None and not self.step_size > 0:
            raise ArgumentError(f"step_size must be above 0, got {self.step_size}")

    @property
    def calls(self) -> int:
        return self.restarts * (self.steps + 1)

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, radii: Tensor) -> Tensor:
        """The moved images (n, *shape), the most wrong ones found, for labels and radii (n,) of their balls."""
        generator = torch.Generator(images.device).manual_seed(self.seed)
        radius = per_image(radii, images).to(images)
        best, lowest = images, images.new_full(labels.shape, torch.inf)
        for _ in range(self.restarts):
            start = self._random(images, radius, generator) if self.random_start else torch.zeros_like(images)
            best, lowest = lower(best, lowest, *self.climb(model, images, labels, radii, start))
        return best

    def climb(
        self, model: Model, images: Tensor, labels: Tensor, radii: Tensor, start: Tensor
    ) -> tuple[Tensor, Tensor]:
        """From one start, a change (n, *shape): the most wrong points passed, (n, *shape), and their margins (n,)."""
        radius = per_image(radii, images).to(images)
        share = self.step_size if self.step_size is not None else max(2.5 / self.steps, 1 / 40)
        x = _project(images + start, images, radius, self.norm)
        best, lowest = x, images.new_full(labels.shape, torch.inf)
        for _ in range(self.steps):
            gradient, margins = _ascent(model, x, labels, self.loss)
            best, lowest = lower(best, lowest, x, margins)
            x = _project(x + share * radius * direction(gradient, self.norm), images, radius, self.norm)
        with torch.no_grad():
            return lower(best, lowest, x, margin_of(model(x), labels))

    def _random(self, images: Tensor, radius: Tensor, generator: torch.Generator) -> Tensor:
        like: dict[str, Any] = {"generator": generator, "device": images.device, "dtype": images.dtype}
        if self.norm == "linf":
            return (2 * torch.rand(images.shape, **like) - 1) * radius
        return direction(torch.randn(images.shape, **like), "l2") * radius * torch.rand(radius.shape, **like)


def fgsm(
    model: Model,
    images: Tensor,
    labels: Tensor,
    radii: Tensor,
    norm: AttackNorm = "linf",
    *,
    start: Tensor | None = None,
    step_size: float = 1.0,
) -> Tensor:
    """One step along the sign of the gradient of the cross entropy (its direction, for l2), clipped to [0, 1].

    From images (n, *shape) in [0, 1] with labels and radii (n,), or from these changed by ``start`` (n, *shape); the
    step is in shares of the radius.

    References: Goodfellow, Shlens, Szegedy, "Explaining and harnessing adversarial examples", 2015; from a random start
    Wong, Rice, Kolter, "Fast is better than free", 2020.
    """
    radius = per_image(radii, images).to(images)
    x = images if start is None else _project(images + start, images, radius, norm)
    gradient, _ = _ascent(model, x, labels, "cross-entropy")
    return _project(x + step_size * radius * direction(gradient, norm), images, radius, norm)


def _ascent(model: Model, x: Tensor, labels: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """The direction in which the loss grows, as x, and the margins (n,) at x."""
    with torch.enable_grad():
        point = x.detach().requires_grad_()
        logits = model(point)
        margins = margin_of(logits, labels)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        total = -margins.sum() if loss == "margin" else F.cross_entropy(wide, labels, reduction="sum")
        (gradient,) = torch.autograd.grad(total, point)
    return gradient, margins.detach()


def lower(best: Tensor, lowest: Tensor, x: Tensor, margins: Tensor) -> tuple[Tensor, Tensor]:
    """Of each image the point with the lower margin, and that margin; one that is NaN is not lower."""
    found = margins < lowest
    return torch.where(per_image(found, x), x, best), torch.where(found, margins.to(lowest), lowest)


def per_image(values: Tensor, images: Tensor) -> Tensor:
    """One value an image, for broadcasting: (n,) -> (n, 1, ...)."""
    if values.shape != images.shape[:1]:
        raise ShapeError(f"radii must have shape ({len(images)},), got {tuple(values.shape)}")
    return values.view(-1, *(1,) * (images.dim() - 1))


def direction(gradient: Tensor, norm: AttackNorm) -> Tensor:
    """The step of length one along which a linear function grows most; zero where the gradient is."""
    if norm == "linf":
        return gradient.sign()
    return gradient / lengths(gradient).clamp_min(torch.finfo(gradient.dtype).tiny)


def lengths(x: Tensor) -> Tensor:
    """The l2 norm of each row, broadcast: (n, *shape) -> (n, 1, ...)."""
    return torch.linalg.vector_norm(x.flatten(1), dim=1).view(-1, *(1,) * (x.dim() - 1))


def _project(x: Tensor, centre: Tensor, radius: Tensor, norm: AttackNorm) -> Tensor:
    """Into the ball, then into [0, 1], which leads no further from an image that lies in it."""
    if norm == "linf":
        return torch.minimum(torch.maximum(x, centre - radius), centre + radius).clamp(0, 1)
    delta = x - centre
    return (centre + delta * (radius / lengths(delta).clamp_min(1e-30)).clamp_max(1.0)).clamp(0, 1)


class CertifiedFunction(nn.Module):
    """Values by the very program that is certified, gradients through the float64 copy of the model.

    A model that cannot be certified has no program: its float64 copy gives the values too.
    """

    def __init__(self, model: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.exact = plain_copy(model).double()
        self.certifier: Certifier | None
        try:
            self.certifier = Certifier(model, shape)
        except SkewconvError:
            self.certifier = None

    def forward(self, x: Tensor) -> Tensor:
        x = x.double()
        if self.certifier is None or (torch.is_grad_enabled() and x.requires_grad):
            logits: Tensor = self.exact(x)
            return logits
        return self.certifier.logits(x).to(x.device)


class Counted(nn.Module):
    """A model that counts how often it is asked, one step for each image of each call, and tells ``tick``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.steps = model, 0
        self.tick: Callable[[int], None] = lambda steps: None

    def forward(self, x: Tensor) -> Tensor:
        self.steps += len(x)
        self.tick(self.steps)
        logits: Tensor = self.model(x)
        return logits


def plain_copy(model: nn.Module) -> nn.Module:
    """A copy in eval mode without gradients in its weights."""
    return copy.deepcopy(unwrapped(model)).eval().requires_grad_(False)


def check_lengths(images: Tensor, labels: Tensor, radii: Tensor) -> None:
    if not (len(images) == len(labels) == len(radii)):
        raise ShapeError(f"{len(images)} images, {len(labels)} labels and {len(radii)} radii: give as many of each")
