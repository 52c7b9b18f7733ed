"""Searches for the decision boundary: for roundings that change a prediction inside a radius, and for its distance.

A certificate that forgets rounding breaks where the exact margin is tiny, at the point of the ball nearest to a
boundary. The rounding search goes there along the linearised model, and then from neighbour to neighbour among the
floating-point numbers around it, keeping whatever lowers the computed margin.

Reference: Jin, Ohrimenko, Rubinstein, "Getting a-round guarantees: floating-point attacks on certified robustness",
2022.
"""

from collections.abc import MutableSequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from skewconv.certify.certifier import margin_of
from skewconv.certify.perturb import (
    CertifiedFunction,
    Counted,
    check_lengths,
    direction,
    lengths,
    lower,
    per_image,
    plain_copy,
)
from skewconv.errors import ArgumentError
from skewconv.nn.module_tools import first_tensor
from skewconv.progress import Tick
from skewconv.rigor import vector_norm_up

# Share by which the distance changes at each step of the search for the nearest boundary, and halvings of the way.
_SHRINK, _BISECTIONS = 0.05, 30


@dataclass(frozen=True)
class RoundingSearch:
    """For each image and each of its nearest rivals: to the boundary by Newton's method, then among the neighbours.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).requires_grad_(False)
    >>> x, t = torch.rand(3, 1, 2, 2), torch.tensor([0, 1, 0])
    >>> moved = RoundingSearch(neighbours=3)(model, x, t, torch.full((3,), 0.1))
    >>> bool((moved.double() - x.double()).flatten(1).norm(dim=1).max() <= 0.1)
    True

    Arguments:
        rivals: how many other classes, from the one with the smallest margin.
        linearisations: steps of Newton's method.
        neighbours: how many points are tried around each boundary point.
        reach: the most units in the last place by which a pixel is moved at once.
        seed: of the neighbours.
    """

    rivals: int = 2
    linearisations: int = 5
    neighbours: int = 100
    reach: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rivals", "linearisations", "neighbours", "reach"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def calls(self) -> int:
        return 1 + self.rivals * (self.linearisations + 1 + self.neighbours)

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, radii: Tensor) -> Tensor:
        """The moved images (n, *shape) with the lowest margins found, all within their radii (n,), in their dtype."""
        generator = torch.Generator(images.device).manual_seed(self.seed)
        limits = radii.double()
        with torch.no_grad():
            logits = model(images)
        best, lowest = images, margin_of(logits, labels)
        own = torch.arange(logits.shape[1], device=logits.device) == labels[:, None]
        order = logits.masked_fill(own, -torch.inf).argsort(1, descending=True)
        for rank in range(min(self.rivals, logits.shape[1] - 1)):
            point = self._to_boundary(model, images, labels, order[:, rank], limits)
            with torch.no_grad():
                best, lowest = lower(best, lowest, *self._walk(model, images, labels, limits, point, generator))
        return best

    def _to_boundary(self, model: nn.Module, images: Tensor, labels: Tensor, rival: Tensor, limits: Tensor) -> Tensor:
        """The point of the ball on the way to the nearest point of f_t = f_i, linearised again and again."""
        point = images
        for _ in range(self.linearisations):
            with torch.enable_grad():
                at = point.detach().requires_grad_()
                logits = model(at)
                gap = (logits.gather(1, labels[:, None]) - logits.gather(1, rival[:, None]))[:, 0]
                (slope,) = torch.autograd.grad(gap.sum(), at)
            slope = slope.double()
            square = slope.square().flatten(1).sum(1).clamp_min(1e-300)
            # The plane gap + <slope, y - point> = 0, and its point nearest to the image.
            offset = gap.detach().double() + (slope * (images - point).double()).flatten(1).sum(1)
            step = slope * per_image(offset / square, images)
            point = (images.double() - step).clamp(0, 1).to(images.dtype)
        away = point.double() - images.double()
        ratio = per_image(limits, images) / lengths(away).clamp_min(1e-300)
        return _pulled_inside(images.double() + away * ratio, images, limits)

    def _walk(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        limits: Tensor,
        point: Tensor,
        generator: torch.Generator,
    ) -> tuple[Tensor, Tensor]:
        """From the point from neighbour to neighbour inside of the ball, and the margins where the walk ends."""
        here, margin = point, margin_of(model(point), labels)
        for number in range(self.neighbours):
            unit = torch.nextafter(here, torch.full_like(here, torch.inf)) - here
            hops = torch.randint(-self.reach, self.reach + 1, here.shape, generator=generator, device=here.device)
            # Many pixels at first, few at last.
            kept = torch.rand(here.shape, generator=generator, device=here.device) < 2.0 ** -(number % 6)
            there = (here + unit * hops.to(here.dtype) * kept).clamp(0, 1)
            margins = margin_of(model(there), labels)
            better = _inside(there, images, limits) & (margins <= margin)
            here = torch.where(per_image(better, images), there, here)
            margin = torch.where(better, margins, margin)
        return here, margin


def _inside(points: Tensor, images: Tensor, limits: Tensor) -> Tensor:
    """(n,): True where the distance, rounded up, is at most the limit."""
    return vector_norm_up((points.double() - images.double()).flatten(1)) <= limits


def _pulled_inside(points: Tensor, images: Tensor, limits: Tensor) -> Tensor:
    """Float64 points rounded to the precision of the images, each drawn towards its image until it is inside."""
    share, unit = torch.ones_like(limits), torch.finfo(images.dtype).eps
    for attempt in range(24):
        moved = images.double() + (points - images.double()) * per_image(share, images)
        rounded = moved.clamp(0, 1).to(images.dtype)
        inside = _inside(rounded, images, limits)
        if bool(inside.all()):
            return rounded
        share = torch.where(inside, share, share * (1 - unit * 2.0**attempt))
    return torch.where(per_image(inside, images), rounded, images)


@dataclass(frozen=True)
class BoundarySearch:
    """Climbs the direction and adapts the distance apart: further out while the label holds, nearer once it falls.

    Reference: Rony, Hafemann, Oliveira, Ben Ayed, Sabourin, Granger, "Decoupling direction and norm for efficient
    gradient-based l2 adversarial attacks and defenses", 2019.
    """

    steps: int = 100

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ArgumentError(f"steps must be at least 1, got {self.steps}")

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, radii: Tensor) -> Tensor:
        """The nearest points found that are classified otherwise, (n, *shape); the image itself where there is none."""
        scale = per_image(radii, images).to(images)
        delta, distance = torch.zeros_like(images), 1.2 * scale
        best, nearest = images, torch.full_like(scale, torch.inf)
        for number in range(self.steps):
            with torch.enable_grad():
                point = (images + delta).detach().requires_grad_()
                margins = margin_of(model(point), labels)
                (slope,) = torch.autograd.grad(-margins.sum(), point)
            fallen, size = per_image(margins.detach() < 0, images), lengths(delta)
            found = fallen & (size < nearest)
            best, nearest = torch.where(found, point.detach(), best), torch.where(found, size, nearest)
            # From the whole radius down to a hundredth of it.
            pace = scale * (0.01 + 0.99 * (1 - number / self.steps) ** 2)
            delta = delta + pace * direction(slope, "l2")
            distance = distance * torch.where(fallen, 1 - _SHRINK, 1 + _SHRINK)
            delta = (images + distance * direction(delta, "l2")).clamp(0, 1) - images
        return best


@dataclass(frozen=True)
class Tightness:
    """Distances to the nearest boundary found, divided by the radii: what certificates leave on the table, at most.

    Of the images with a radius, a boundary was found for some; median and quantiles of the quotients are None if for
    none. ``below`` has the indices of quotients of at most 1: certificates that do not hold.
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
        return {**asdict(self), "below": list(self.below)}


def measure_tightness(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    radii: Tensor,
    search: BoundarySearch | None = None,
    *,
    climbs: nn.Module | None = None,
    batch_size: int = 32,
    index: Tensor | None = None,
    progress: Tick | None = None,
    finished: MutableSequence[dict[str, Any]] | None = None,
) -> Tightness:
    """Search the nearest boundary of each certified image, and halve the way to it in the certified arithmetic.

    The search makes 100 steps by default. The other arguments are as for :func:`attack_certificates`; images without a
    radius are left out.
    """
    check_lengths(images, labels, radii)
    search, shape = search or BoundarySearch(), tuple(images.shape[1:])
    numbers = torch.arange(len(images)) if index is None else index.cpu()
    climbed, exact = Counted(plain_copy(climbs or model)), CertifiedFunction(model, shape)
    like = first_tensor(model, images)
    which = ((radii > 0) & torch.isfinite(radii)).nonzero()[:, 0].cpu()
    outcomes = [] if finished is None else finished
    if progress is not None:
        climbed.tick = lambda steps: progress(steps, search.steps * len(which))
    for number, rows in enumerate(which.split(batch_size)):
        if number < len(outcomes):
            climbed.steps += search.steps * len(rows)
            continue
        x, t = images[rows].to(like.device, like.dtype), labels[rows].to(like.device)
        point = search(climbed, x, t, radii[rows].to(like.device))
        distance = _distance_on_segment(exact, x.double(), point.double(), t)
        outcomes.append({"quotients": (distance.cpu() / radii[rows].double().cpu()).tolist()})
    quotients = torch.tensor([q for outcome in outcomes for q in outcome["quotients"]], dtype=torch.float64)
    found = quotients[torch.isfinite(quotients)]
    shares = torch.tensor([0.5, 0.0, 0.1, 0.9], dtype=torch.float64)
    middle, least, tenth, ninetieth = found.quantile(shares).tolist() if len(found) else [None] * 4
    steps, below = climbed.steps + len(which) * (_BISECTIONS + 1), tuple(numbers[which][quotients <= 1].tolist())
    return Tightness(len(which), len(found), middle, least, tenth, ninetieth, steps, below)


def _distance_on_segment(exact: nn.Module, images: Tensor, points: Tensor, labels: Tensor) -> Tensor:
    """(n,) distances of the nearest points on the segments that are classified otherwise, infinite for none."""

    def moved(share: Tensor) -> tuple[Tensor, Tensor]:
        there = images + (points - images) * per_image(share, images)
        with torch.no_grad():
            return exact(there).argmax(1) != labels, there

    high = torch.ones(len(images), dtype=torch.float64, device=images.device)
    low, (wrong, last) = torch.zeros_like(high), moved(high)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        falls, there = moved(middle)
        high, low = torch.where(falls, middle, high), torch.where(falls, low, middle)
        last = torch.where(per_image(falls, images), there, last)
    return torch.where(wrong, lengths(last - images).flatten(), torch.inf)
