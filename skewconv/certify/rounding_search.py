"""A search for roundings that change a prediction just inside a radius.

A certificate that forgets rounding breaks where the exact margin is tiny: at the point of the ball that is nearest to a
decision boundary. The search goes there along the segment to the boundary of the linearised model, and then walks from
neighbour to neighbour among the floating-point numbers around it, keeping whatever lowers the computed margin.

Reference: Jin, Ohrimenko, Rubinstein, "Getting a-round guarantees: floating-point attacks on certified robustness",
2022.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from skewconv.certify.margins import margin_of
from skewconv.certify.perturb import lengths
from skewconv.errors import ArgumentError
from skewconv.rigor import vector_norm_up


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

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, radii: Tensor) -> Tensor:
        """The moved images (n, *shape) with the lowest margins found, all within their radii.

        Args:
            model: in eval mode.
            images: (n, *shape) in [0, 1]; the neighbours are those of its precision.
            labels, radii: (n,).
        """
        generator = torch.Generator(images.device).manual_seed(self.seed)
        limits = radii.double()
        with torch.no_grad():
            logits = model(images)
        best, lowest = images, margin_of(logits, labels)
        own = torch.arange(logits.shape[1], device=logits.device) == labels[:, None]
        order = logits.masked_fill(own, -torch.inf).argsort(1, descending=True)
        for rank in range(min(self.rivals, logits.shape[1] - 1)):
            point = self._to_boundary(model, images, labels, order[:, rank], limits)
            best, lowest = self._walk(model, images, labels, limits, point, (best, lowest), generator)
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
            slope, ones = slope.double(), (1,) * (images.dim() - 1)
            square = slope.square().flatten(1).sum(1).clamp_min(1e-300)
            # The plane gap + <slope, y - point> = 0, and its point nearest to the image.
            offset = gap.detach().double() + (slope * (images - point).double()).flatten(1).sum(1)
            step = slope * (offset / square).view(-1, *ones)
            point = (images.double() - step).clamp(0, 1).to(images.dtype)
        away = point.double() - images.double()
        size = lengths(away).clamp_min(1e-300)
        ratio = limits.view_as(size) / size
        return _pulled_inside(images.double() + away * ratio, images, limits)

    def _walk(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        limits: Tensor,
        point: Tensor,
        found: tuple[Tensor, Tensor],
        generator: torch.Generator,
    ) -> tuple[Tensor, Tensor]:
        best, lowest = found
        ones = (1,) * (images.dim() - 1)
        with torch.no_grad():
            here, margin = point, margin_of(model(point), labels)
            for number in range(self.neighbours):
                unit = torch.nextafter(here, torch.full_like(here, torch.inf)) - here
                hops = torch.randint(
                    -self.reach, self.reach + 1, here.shape, generator=generator, device=here.device
                ).to(here.dtype)
                # Many pixels at first, few at last.
                kept = torch.rand(here.shape, generator=generator, device=here.device) < 2.0 ** -(number % 6)
                there = (here + unit * hops * kept).clamp(0, 1)
                margins = margin_of(model(there), labels)
                better = _inside(there, images, limits) & (margins <= margin)
                here = torch.where(better.view(-1, *ones), there, here)
                margin = torch.where(better, margins, margin)
        lower = margin < lowest
        return torch.where(lower.view(-1, *ones), here, best), torch.where(lower, margin, lowest)


def _inside(points: Tensor, images: Tensor, limits: Tensor) -> Tensor:
    """(n,): whether the distance, rounded up, is at most the limit."""
    return vector_norm_up((points.double() - images.double()).flatten(1)) <= limits


def _pulled_inside(points: Tensor, images: Tensor, limits: Tensor) -> Tensor:
    """Float64 points rounded to the precision of the images, each drawn towards its image until it is inside."""
    ones = (1,) * (images.dim() - 1)
    share = torch.ones_like(limits)
    unit = torch.finfo(images.dtype).eps
    for attempt in range(24):
        moved = images.double() + (points - images.double()) * share.view(-1, *ones)
        rounded = moved.clamp(0, 1).to(images.dtype)
        inside = _inside(rounded, images, limits)
        if bool(inside.all()):
            return rounded
        share = torch.where(inside, share, share * (1 - unit * 2.0**attempt))
    return torch.where(inside.view(-1, *ones), rounded, images)
