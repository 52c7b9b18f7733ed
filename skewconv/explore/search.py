"""The attack behind the slider: a short gradient ascent, warm-started."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from skewconv.certify import PGD

#: random starts beside the image itself and the warm one
_RANDOM = 2
_FRACTIONS = 16
_KEPT = 64


@dataclass(frozen=True)
class Found:
    """The result of an attack: the moved image (*shape), float64, its l2 distance and its logits (classes,).

    nearest is the smallest distance at which any attack on this image, so far, found another class; None if none did.
    """

    image: Tensor
    distance: float
    logits: Tensor
    nearest: float | None


@dataclass
class Trail:
    """The memory of one image: its last change, and the shortest distance at which its class was altered."""

    change: Tensor | None = None
    nearest: float | None = None


@dataclass
class Search:
    """Attacks one image at a time, at any length, and starts from the last result.

    Arguments:
        fast: the function whose gradient is followed: frozen, float32.
        logits: (n, *shape) float64 -> (n, classes) float64; decides the class.
        steps: of each ascent.
    """

    fast: nn.Module
    logits: Callable[[Tensor], Tensor]
    steps: int = 12
    trails: "OrderedDict[bytes, Trail]" = field(default_factory=OrderedDict)

    def __call__(self, image: Tensor, prediction: int, length: float) -> Found:
        """Look for another class than the prediction within an l2 length of an image (*shape), float32, in [0, 1]."""
        trail = self._trail(image)
        exact = image.double()
        if length <= 0:
            return Found(exact, 0.0, self.logits(exact[None])[0], trail.nearest)
        best = self._climb(image, prediction, length, trail)
        moved = _inside(best.double(), exact, length)
        logits = self.logits(moved[None])[0]
        distance = float(torch.linalg.vector_norm(moved - exact))
        trail.change = (moved - exact).to(image.dtype)
        if int(logits.argmax()) != prediction:
            self._shorten(exact, moved - exact, distance, prediction, trail)
        return Found(moved, distance, logits, trail.nearest)

    def _trail(self, image: Tensor) -> Trail:
        key = image.contiguous().numpy().tobytes()
        trail = self.trails.pop(key, None) or Trail()
        self.trails[key] = trail
        while len(self.trails) > _KEPT:
            self.trails.popitem(last=False)
        return trail

    def _climb(self, image: Tensor, prediction: int, length: float, trail: Trail) -> Tensor:
        """The best of ascents from the image, from the last change scaled to the length, and from random points."""
        generator = torch.Generator().manual_seed(0)
        starts = torch.randn(_RANDOM + 2, *image.shape, generator=generator)
        starts[0] = 0
        if trail.change is not None and bool(trail.change.any()):
            starts[1] = trail.change
        norms = torch.linalg.vector_norm(starts.flatten(1), dim=1).clamp_min(1e-12)
        starts = starts * (length / norms).view(-1, *(1,) * image.dim())
        many = image.expand(len(starts), *image.shape)
        labels = torch.full((len(starts),), prediction)
        radii = torch.full((len(starts),), length)
        attack = PGD("l2", steps=self.steps, step_size=0.25, random_start=False)
        places, margins = attack.climb(self.fast, many, labels, radii, starts)
        return places[int(margins.argmin())]

    def _shorten(self, image: Tensor, change: Tensor, distance: float, prediction: int, trail: Trail) -> None:
        """The shortest of a few lengths along the same change that still alters the class."""
        shares = torch.arange(1, _FRACTIONS + 1, dtype=torch.float64) / _FRACTIONS
        points = image + shares.view(-1, *(1,) * image.dim()) * change
        other = self.logits(points).argmax(1) != prediction
        nearest = distance * float(shares[other][0])
        trail.nearest = nearest if trail.nearest is None else min(trail.nearest, nearest)


def _inside(moved: Tensor, image: Tensor, length: float) -> Tensor:
    """The point moved into the open ball, rounding included; float64."""
    change = moved - image
    size = float(torch.linalg.vector_norm(change))
    scale = min(1.0, length / size * (1 - 1e-9)) if size > 0 else 1.0
    return (image + change * scale).clamp(0, 1)
