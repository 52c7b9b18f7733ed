"""How near the nearest boundary that can be found is, in radii: what a certificate leaves on the table, at most."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from skewconv.certify.attack import Float64Program, victim
from skewconv.certify.margins import margin_of
from skewconv.certify.perturb import lengths
from skewconv.errors import ArgumentError, ShapeError
from skewconv.nn.module_tools import first_tensor
from skewconv.progress import Tick


@dataclass(frozen=True)
class BoundarySearch:
    """Climbs the direction and adapts the distance apart: further out while the label holds, nearer once it falls.

    Arguments:
        steps: gradient steps.
        shrink: the share by which the distance changes at each step.

    Reference: Rony, Hafemann, Oliveira, Ben Ayed, Sabourin, Granger, "Decoupling direction and norm for efficient
    gradient-based l2 adversarial attacks and defenses", 2019.
    """

    steps: int = 100
    shrink: float = 0.05

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 < self.shrink < 1:
            raise ArgumentError(
                f"steps must be at least 1 and shrink between 0 and 1, got {self.steps} and {self.shrink}"
            )

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, radii: Tensor) -> Tensor:
        """The nearest points found that are classified otherwise, (n, *shape); the image itself where there is none."""
        ones = (1,) * (images.dim() - 1)
        scale = radii.to(images).view(-1, *ones)
        delta, distance = torch.zeros_like(images), 1.2 * scale
        best, nearest = images, torch.full_like(scale, torch.inf)
        for number in range(self.steps):
            with torch.enable_grad():
                point = (images + delta).detach().requires_grad_()
                margins = margin_of(model(point), labels)
                (slope,) = torch.autograd.grad(-margins.sum(), point)
            fallen = (margins.detach() < 0).view(-1, *ones)
            size = lengths(delta)
            found = fallen & (size < nearest)
            best, nearest = torch.where(found, point.detach(), best), torch.where(found, size, nearest)
            # From the whole radius down to a hundredth of it.
            pace = scale * (0.01 + 0.99 * (1 - number / self.steps) ** 2)
            delta = delta + pace * slope / lengths(slope).clamp_min(torch.finfo(slope.dtype).tiny)
            distance = distance * torch.where(fallen, 1 - self.shrink, 1 + self.shrink)
            delta = delta * (distance / lengths(delta).clamp_min(torch.finfo(delta.dtype).tiny))
            delta = (images + delta).clamp(0, 1) - images
        return best


@dataclass(frozen=True)
class Tightness:
    """Distances to the nearest boundary found, divided by the radii.

    Arguments:
        images: how many had a radius.
        found: for how many of them a boundary was found.
        median, least, tenth, ninetieth: of the quotients, None if nothing was found. None is below 1.
        steps: how often the model was asked, once for each image.
        below: indices of the images with a quotient of at most 1: certificates that do not hold.
    """

    images: int
    found: int
    median: float | None
    least: float | None
    tenth: float | None
    ninetieth: float | None
    steps: int
    below: tuple[int, ...]

    def results(self) -> dict[str, Any]:
        """For a record."""
        return {**self.__dict__, "below": list(self.below)}


def measure_tightness(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    radii: Tensor,
    search: BoundarySearch | None = None,
    *,
    batch_size: int = 256,
    bisections: int = 30,
    index: Tensor | None = None,
    progress: Tick | None = None,
) -> Tightness:
    """Search the nearest boundary of each certified image, and halve the way to it in the certified arithmetic.

    Args:
        model: images to logits; it is copied, and left as it is.
        images: (n, *shape), floating, in [0, 1].
        labels, radii: (n,); images without a radius are left out.
        search: 100 steps by default.
        bisections: of the segment from the image to the point found, judged by the float64 program.
        index: (n,), the numbers by which the result calls the images; 0 to n - 1 by default.
        progress: called after each batch with the images done, and all.
    """
    if not (len(images) == len(labels) == len(radii)):
        raise ShapeError(f"{len(images)} images, {len(labels)} labels and {len(radii)} radii: give as many of each")
    search = search or BoundarySearch()
    numbers = torch.arange(len(images)) if index is None else index.cpu()
    climbed = victim(model, tuple(images.shape[1:]), "model")
    judge = Float64Program(model, tuple(images.shape[1:]))
    like = first_tensor(model, images)
    which = ((radii > 0) & torch.isfinite(radii)).nonzero()[:, 0].cpu()
    quotients, steps = torch.full((len(images),), torch.inf, dtype=torch.float64), 0
    for rows in which.split(batch_size):
        x, t = images[rows].to(like.device, like.dtype), labels[rows].to(like.device)
        point = search(climbed, x, t, radii[rows].to(like.device))
        distance, asked = _along_the_way(judge, x.double(), point.double(), t, bisections)
        quotients[rows] = distance.cpu() / radii[rows].double().cpu()
        steps += asked
        if progress is not None:
            progress(int(rows[-1]) + 1, len(images))
    found = quotients[torch.isfinite(quotients)]
    figures = found.quantile(torch.tensor([0.5, 0.0, 0.1, 0.9], dtype=torch.float64)).tolist() if len(found) else None
    below = tuple(numbers[quotients <= 1].tolist())
    middle, least, tenth, ninetieth = figures or [None] * 4
    return Tightness(len(which), len(found), middle, least, tenth, ninetieth, steps + climbed.steps, below)


def _along_the_way(
    judge: nn.Module, images: Tensor, points: Tensor, labels: Tensor, bisections: int
) -> tuple[Tensor, int]:
    """(n,) distances of the last points on the segments that the judge classifies otherwise, infinite for none."""
    ones = (1,) * (images.dim() - 1)

    def fallen(share: Tensor) -> tuple[Tensor, Tensor]:
        there = images + (points - images) * share.view(-1, *ones)
        with torch.no_grad():
            return judge(there).argmax(1) != labels, there

    high = torch.ones(len(images), dtype=torch.float64, device=images.device)
    low, (wrong, last) = torch.zeros_like(high), fallen(high)
    for _ in range(bisections):
        middle = (low + high) / 2
        falls, there = fallen(middle)
        high, low = torch.where(falls, middle, high), torch.where(falls, low, middle)
        last = torch.where(falls.view(-1, *ones), there, last)
    distance = lengths(last - images).flatten()
    return torch.where(wrong, distance, torch.inf), len(images) * (bisections + 1)
