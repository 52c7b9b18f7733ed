"""Radii by the second path, to hold those of certificates against."""

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from skewconv.certify.certifier import refuse_another_function
from skewconv.nn.module_tools import float64_copy
from skewconv.ops.torch_modes import without_autocast
from tests.oracles.second_path.norms import row_distances
from tests.oracles.second_path.rules import walk

# Of the output of a layer: some roundings, enough to notice where they decide, and too few to hide an honest radius.
_ROUNDING = 2.0**-50


class Derived(NamedTuple):
    """What the second path says: radii (n,), logits (n, classes), the labels (n,) used, and the Lipschitz bound.

    `most` (n,) is what the radii could be had every rounding gone their way; where there is no radius, it is 0 too.
    """

    radii: Tensor
    most: Tensor
    logits: Tensor
    labels: Tensor
    lipschitz: float


def derive(model: nn.Module, images: Tensor, labels: Tensor, batch_size: int) -> Derived:
    """Radii and what they come from by the second path, on the CPU."""
    exact = float64_copy(model)
    layers = walk(exact, tuple(images.shape[1:]))
    head, factors = layers[-1].matrix, [layer.lipschitz for layer in layers]
    # Rational numbers, in which a product of small bounds does not vanish, and one of large bounds does not overflow.
    finite = all(map(math.isfinite, factors))
    before = math.prod(map(Fraction, factors[:-1]), start=Fraction(1)) if finite else None
    whole = None if before is None else before * Fraction(factors[-1])

    def run(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer.run(x)
        return x

    with torch.no_grad(), without_autocast(torch.device("cpu")):
        refuse_another_function(exact, run, tuple(images.shape[1:]), torch.device("cpu"))
        parts, lost = [], []
        for x in images.cpu().split(batch_size):
            y, off = x.double(), torch.zeros(len(x), dtype=torch.float64)
            for layer in layers:
                y = layer.run(y)
                off = off * layer.lipschitz + _ROUNDING * y.flatten(1).norm(dim=1)
            parts.append(y)
            lost.append(off)
        logits, off = torch.cat(parts), torch.cat(lost)
    if before is None or whole is None:
        nothing = torch.zeros(len(images), dtype=torch.float64)
        return Derived(nothing, nothing, logits, labels.to(torch.int64), math.inf)
    slopes = {t: _slopes(t, logits.shape[1], head, before, whole) for t in set(labels.tolist())}
    rows = zip(logits.numpy(), labels, off.tolist(), strict=True)
    found = [[_radius(row, int(t), slopes[int(t)], sign * lost) for sign in (1, -1)] for row, t, lost in rows]
    radii, most = torch.tensor(found, dtype=torch.float64).view(-1, 2).unbind(1)
    return Derived(radii, torch.where(radii > 0, most, 0.0), logits, labels.to(torch.int64), _nearest(whole))


def _slopes(t: int, classes: int, head: np.ndarray | None, before: Fraction, whole: Fraction) -> list[Fraction]:
    """For each other class i a Lipschitz constant of f_t - f_i."""
    slopes = [whole * Fraction(math.sqrt(2))] * (classes - 1)
    if head is None:
        return slopes
    return [min(slope, before * Fraction(d)) for slope, d in zip(slopes, row_distances(head, t), strict=True)]


def _radius(z: np.ndarray, t: int, slopes: list[Fraction], lost: float) -> float:
    # Once at the image, and once at the point that it moves to, for each of two logits.
    gaps = z[t] - np.delete(z, t) - 4 * lost
    if not (np.isfinite(z).all() and (gaps > 0).all()):
        return 0.0
    quotients = [_nearest(Fraction(float(gap)) / slope) for gap, slope in zip(gaps, slopes, strict=True) if slope]
    return min(quotients, default=math.inf)


def _nearest(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
