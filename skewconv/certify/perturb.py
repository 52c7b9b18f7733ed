"""Attacks by gradients: FGSM and PGD, in l2 and l-infinity, each image with its own radius."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skewconv.errors import ArgumentError, ShapeError

Norm: TypeAlias = Literal["l2", "linf"]


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
    """

    norm: Norm = "l2"
    steps: int = 50
    restarts: int = 1
    step_size: float | None = None
    random_start: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.norm not in get_args(Norm):
            raise ArgumentError(f"norm must be 'l2' or 'linf', got {self.norm!r}")
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
        if radii.shape != images.shape[:1]:
            raise ShapeError(f"radii must have shape ({len(images)},), got {tuple(radii.shape)}")
        radius = radii.to(images).view(-1, *(1,) * (images.dim() - 1))
        generator = torch.Generator(images.device).manual_seed(self.seed)
        best, lowest = images.clone(), images.new_full(labels.shape, torch.inf)
        share = self.step_size if self.step_size is not None else max(2.5 / self.steps, 1 / 40)
        for _ in range(self.restarts):
            x = images.clone()
            if self.random_start:
                x = _project(images + self._random(images, radius, generator), images, radius, self.norm)
            for step in range(self.steps + 1):
                x.requires_grad_()
                logits = model(x)
                margins = margin_of(logits, labels)
                # Cross entropy has no gradient left where the model is sure; the margin always has one.
                (gradient,) = torch.autograd.grad(margins.sum(), x)
                with torch.no_grad():
                    found = margins < lowest
                    best[found], lowest[found] = x[found], margins[found]
                    if step < self.steps:
                        moved = x - share * radius * _direction(gradient, self.norm)
                        x = _project(moved, images, radius, self.norm)
        return best.detach()

    def _random(self, images: Tensor, radius: Tensor, generator: torch.Generator) -> Tensor:
        if self.norm == "linf":
            noise = torch.rand(images.shape, generator=generator, device=images.device, dtype=images.dtype)
            return (2 * noise - 1) * radius
        noise = torch.randn(images.shape, generator=generator, device=images.device, dtype=images.dtype)
        size = torch.rand(radius.shape, generator=generator, device=images.device, dtype=images.dtype)
        return _direction(noise, "l2") * radius * size


def fgsm(model: nn.Module, images: Tensor, labels: Tensor, radii: Tensor, norm: Norm = "linf") -> Tensor:
    """One step along the sign of the gradient of the cross entropy (its direction, for l2), clipped to [0, 1].

    Args:
        images: (n, *shape) in [0, 1]; labels and radii: (n,).

    Reference: Goodfellow, Shlens, Szegedy, "Explaining and harnessing adversarial examples", 2015.
    """
    x = images.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(model(x), labels, reduction="sum"), x)
    radius = radii.to(images).view(-1, *(1,) * (images.dim() - 1))
    return _project(images + radius * _direction(gradient, norm), images, radius, norm)


def margin_of(logits: Tensor, labels: Tensor) -> Tensor:
    """f_t - max_{i != t} f_i: (n, classes), (n,) -> (n,)."""
    own = F.one_hot(labels, logits.shape[1]).bool()
    return logits.gather(1, labels[:, None])[:, 0] - logits.masked_fill(own, -torch.inf).amax(1)


def _direction(gradient: Tensor, norm: Norm) -> Tensor:
    if norm == "linf":
        return gradient.sign()
    return gradient / lengths(gradient).clamp_min(torch.finfo(gradient.dtype).tiny)


def lengths(x: Tensor) -> Tensor:
    """The l2 norm of each row, broadcast: (n, *shape) -> (n, 1, ...)."""
    return torch.linalg.vector_norm(x.flatten(1), dim=1).view(-1, *(1,) * (x.dim() - 1))


def _project(x: Tensor, centre: Tensor, radius: Tensor, norm: Norm) -> Tensor:
    """Into the ball, then into [0, 1], which leads no further from an image that lies in it."""
    if norm == "linf":
        return torch.minimum(torch.maximum(x, centre - radius), centre + radius).clamp(0, 1)
    delta = x - centre
    return (centre + delta * (radius / lengths(delta).clamp_min(1e-30)).clamp_max(1.0)).clamp(0, 1)
