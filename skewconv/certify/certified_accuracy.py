"""What radii say of a data set: certified accuracy, its curve, the mean radius."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from skewconv.choices import RADII as THRESHOLDS
from skewconv.errors import ArgumentError

__all__ = ["THRESHOLDS", "certified_accuracy", "curve", "mean_radius"]


def certified_accuracy(radii: Tensor, thresholds: Iterable[float]) -> list[float]:
    """The share of images whose radius is at least each threshold, and above zero.

    >>> certified_accuracy(torch.tensor([0.0, 0.1, 0.2, 0.3]), [0.0, 0.15])
    [0.75, 0.5]

    Args:
        radii: (n,), with 0 for what is not certified, wrong predictions included.
        thresholds: in the units of the radii.
    """
    values = list(thresholds)
    if any(not t >= 0 for t in values):
        raise ArgumentError(f"thresholds must be >= 0, got {values}")
    if radii.dim() != 1 or len(radii) == 0:
        raise ArgumentError(f"radii must have shape (n,) with n >= 1, got {tuple(radii.shape)}")
    return [float(((radii >= t) & (radii > 0)).double().mean()) for t in values]


def curve(radii: Tensor, points: int = 101) -> list[tuple[float, float]]:
    """(threshold, certified accuracy) from zero to the largest finite radius, in equal steps.

    >>> curve(torch.tensor([0.0, 1.0]), points=3)
    [(0.0, 0.5), (0.5, 0.5), (1.0, 0.5)]
    """
    finite = radii[torch.isfinite(radii)]
    largest = float(finite.max()) if len(finite) else 0.0
    thresholds: Sequence[float] = torch.linspace(0, largest, points, dtype=torch.float64).tolist()
    return list(zip(thresholds, certified_accuracy(radii, thresholds), strict=True))


def mean_radius(radii: Tensor) -> float:
    """The mean over all images, those not certified counting as zero."""
    return float(radii.double().mean())
