"""Attacks by gradients: FGSM and PGD, in l2 and l-infinity, each image with its own radius."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skewconv.certify.margins import margin_of
from skewconv.choices import AttackNorm
from skewconv.errors import ArgumentError, ShapeError

Loss: TypeAlias = Literal["margin", "cross-entropy"]
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

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, radii: Tensor) -> Tensor:
        """The moved images (n, *shape), the most wrong ones found.

        Args:
            model: in eval mode.
            images: (n, *shape) in [0, 1].
            labels: (n,).
            radii: (n,), of the ball of each image in ``norm``.
        """
        generator = torch.Generator(images.device).manual_seed(self.seed)
        radius = _per_image(radii, images)
        best, lowest = images, images.new_full(labels.shape, torch.inf)
        for _ in range(self.restarts):
            start = self._random(images, radius, generator) if self.random_start else torch.zeros_like(images)
            best, lowest = _lower(best, lowest, *self.climb(model, images, labels, radii, start))
        return best

    def climb(
        self, model: Model, images: Tensor, labels: Tensor, radii: Tensor, start: Tensor
    ) -> tuple[Tensor, Tensor]:
        """From one start: the most wrong points passed, (n, *shape), and their margins (n,).

        Args:
            start: the first change of the images, (n, *shape).
        """
        radius = _per_image(radii, images)
        share = self.step_size if self.step_size is not None else max(2.5 / self.steps, 1 / 40)
        x = _project(images + start, images, radius, self.norm)
        best, lowest = x, images.new_full(labels.shape, torch.inf)
        for _ in range(self.steps):
            gradient, margins = _ascent(model, x, labels, self.loss)
            best, lowest = _lower(best, lowest, x, margins)
            x = _project(x + share * radius * _direction(gradient, self.norm), images, radius, self.norm)
        with torch.no_grad():
            return _lower(best, lowest, x, margin_of(model(x), labels))

    def _random(self, images: Tensor, radius: Tensor, generator: torch.Generator) -> Tensor:
        if self.norm == "linf":
            noise = torch.rand(images.shape, generator=generator, device=images.device, dtype=images.dtype)
            return (2 * noise - 1) * radius
        noise = torch.randn(images.shape, generator=generator, device=images.device, dtype=images.dtype)
        size = torch.rand(radius.shape, generator=generator, device=images.device, dtype=images.dtype)
        return _direction(noise, "l2") * radius * size


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

    Args:
        images: (n, *shape) in [0, 1]; labels and radii: (n,).
        start: the first change of the images, (n, *shape); none by default.
        step_size: in shares of the radius.

    References: Goodfellow, Shlens, Szegedy, "Explaining and harnessing adversarial examples", 2015; from a random start
    Wong, Rice, Kolter, "Fast is better than free", 2020.
    """
    radius = _per_image(radii, images)
    x = images if start is None else _project(images + start, images, radius, norm)
    gradient, _ = _ascent(model, x, labels, "cross-entropy")
    return _project(x + step_size * radius * _direction(gradient, norm), images, radius, norm)


def _ascent(model: Model, x: Tensor, labels: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """The direction in which the loss grows, as x, and the margins (n,) at x."""
    with torch.enable_grad():
        point = x.detach().requires_grad_()
        logits = model(point)
        margins = margin_of(logits, labels)
        total = -margins.sum() if loss == "margin" else F.cross_entropy(_wide(logits), labels, reduction="sum")
        (gradient,) = torch.autograd.grad(total, point)
    return gradient, margins.detach()


def _lower(best: Tensor, lowest: Tensor, x: Tensor, margins: Tensor) -> tuple[Tensor, Tensor]:
    """Of each image the point with the lower margin, and that margin; one that is NaN is not lower."""
    found = margins < lowest
    return torch.where(found.view(-1, *(1,) * (x.dim() - 1)), x, best), torch.where(found, margins.to(lowest), lowest)


def _wide(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _per_image(radii: Tensor, images: Tensor) -> Tensor:
    if radii.shape != images.shape[:1]:
        raise ShapeError(f"radii must have shape ({len(images)},), got {tuple(radii.shape)}")
    return radii.to(images).view(-1, *(1,) * (images.dim() - 1))


def _direction(gradient: Tensor, norm: AttackNorm) -> Tensor:
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
