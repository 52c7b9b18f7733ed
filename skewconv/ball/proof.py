"""The proof: balls through the layers, Lipschitz bounds multiplied, and the radius that follows."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from flint import arb, ctx

from skewconv.ball.array import BallArray, concatenated, from_floats
from skewconv.ball.exact import Floats
from skewconv.ball.layers import Layer

PRECISION = 192
# Images at a time: their patches fit into a few hundred megabytes.
_BATCH = 16


@dataclass(frozen=True)
class LayerProof:
    """What was proven of a layer: bounds of its Lipschitz constant, its filter's norm and the error after it."""

    name: str
    kind: str
    lipschitz: float
    norm: float | None
    error: float


@dataclass(frozen=True)
class Proof:
    """Upper bounds of the Lipschitz constant and of the distance of exact logits from their centres, and proven radii.

    The centres (n, classes) are rounded to float64; a radius is a ball, 0 where the prediction is wrong or tied.
    """

    layers: tuple[LayerProof, ...]
    lipschitz: float
    logits: Floats
    error: float
    radii: tuple[arb, ...]

    def holds(self, image: int, radius: float) -> bool:
        """True if a claimed radius is at most the one proven: the comparison is of exact numbers."""
        if radius == math.inf:
            return bool(self.radii[image] == arb("inf"))
        return radius == 0.0 or (radius > 0 and bool(arb(radius) <= self.radii[image]))


def prove(layers: Iterable[tuple[str, str, Layer]], images: Floats, labels: npt.NDArray[np.int64]) -> Proof:
    """Evaluate a chain of (name, kind, layer) and derive the radius of each image (n, *shape) of exact pixels."""
    with ctx.workprec(PRECISION):
        x, bound, before = from_floats(images), arb(1), arb(1)
        lines, head = [], None
        for name, kind, layer in layers:
            chunks = [x.reshaped(x.mantissa[start : start + _BATCH]) for start in range(0, len(images), _BATCH)]
            x = concatenated([layer.run(chunk) for chunk in chunks], 0)
            before, bound, head = bound, (bound * layer.lipschitz).upper(), layer.matrix
            norm = None if layer.norm is None else _up(layer.norm)
            lines.append(LayerProof(name, kind, _up(layer.lipschitz), norm, _up(x.error)))
        if x.mantissa.ndim != 2:
            raise ValueError(f"the layers must end in logits (n, classes), and end in {x.mantissa.shape}")
        slopes = _slopes(x.mantissa.shape[1], bound, before, head)
        radii = tuple(_radius(x, i, int(t), slopes) for i, t in enumerate(labels))
        return Proof(tuple(lines), _up(bound), x.floats(), _up(x.error), radii)


def _up(value: arb) -> float:
    """A float64 that is at least the value, for a person to read."""
    nearest = float(value.upper())
    return nearest if bool(arb(nearest) >= value) else math.nextafter(nearest, math.inf)


def _slopes(classes: int, bound: arb, before: arb, head: Floats | None) -> list[list[arb]]:
    """K_ti, at least the Lipschitz constant of f_t - f_i: sqrt(2) Lip, or Lip before the head times ||w_t - w_i||."""
    whole = bound * arb(2).sqrt()
    slopes = [[whole] * classes for _ in range(classes)]
    if head is None:
        return slopes
    rows = [[arb(float(value)) for value in row] for row in head]
    for t in range(classes):
        for i in range(t):
            square = sum(((a - b) ** 2 for a, b in zip(rows[t], rows[i], strict=True)), arb(0))
            least = (before * square.sqrt()).min(whole).upper()
            slopes[t][i] = slopes[i][t] = least
    return slopes


def _radius(x: BallArray, image: int, label: int, slopes: Sequence[Sequence[arb]]) -> arb:
    """min_i (f_t - f_i) / K_ti; two logits are off by sqrt(2) times the error at most."""
    unit, off = arb(2) ** x.exponent, arb(2).sqrt() * x.error
    z = [arb(int(value)) * unit for value in x.mantissa[image]]
    least = arb("inf")
    for i, value in enumerate(z):
        if i == label:
            continue
        gap = z[label] - value - off
        if not bool(gap > 0):
            return arb(0)
        slope = slopes[label][i]
        least = least if slope.is_zero() else (gap / slope).lower().min(least)
    return least
