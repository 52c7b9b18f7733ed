"""The layers that can be proven, made of NumPy arrays: what each does to a ball, and what it stretches by at most."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from flint import arb

from skewconv.ball.array import BallArray, from_floats, largest
from skewconv.ball.exact import Floats, Integers, sliced
from skewconv.ball.norms import spectral_norm_upper_bound

Map = Callable[[BallArray], BallArray]


@dataclass(frozen=True)
class Ready:
    """A layer whose bounds have been proven.

    Arguments:
        run: balls (n, *input) to balls (n, *output).
        lipschitz: at least the Lipschitz constant.
        remarks: what else was proven, by name.
        matrix: of a linear layer (outputs, inputs), for the differences of its rows.
    """

    run: Map
    lipschitz: arb
    remarks: dict[str, arb] = field(default_factory=dict)
    matrix: Floats | None = None


class Layer(Protocol):
    """A description that can be made ready."""

    def ready(self) -> Ready:
        """Prove its bounds."""


@dataclass(frozen=True)
class Normalisation:
    """(x - mean) / std; both (channels,), or (1,) for all channels."""

    mean: Floats
    std: Floats

    def ready(self) -> Ready:
        factors = [1 / arb(float(s)) for s in self.std]

        def run(x: BallArray) -> BallArray:
            return x.plus(per_channel(-self.mean, x)).scaled_channels(factors)

        return Ready(run, 1 / arb(float(np.abs(self.std).min())))


@dataclass(frozen=True)
class BatchNorm:
    """(x - mean) / sqrt(variance + eps) * weight + bias, all (channels,)."""

    mean: Floats
    variance: Floats
    eps: float
    weight: Floats
    bias: Floats

    def ready(self) -> Ready:
        factors = [
            arb(float(w)) / (arb(float(v)) + arb(self.eps)).sqrt()
            for w, v in zip(self.weight, self.variance, strict=True)
        ]
        most = largest([abs(f) for f in factors])

        def run(x: BallArray) -> BallArray:
            centred = x.plus(per_channel(-self.mean, x))
            return centred.scaled_channels(factors).plus(per_channel(self.bias, x))

        return Ready(run, most)


@dataclass(frozen=True)
class Linear:
    """W x + b for W (outputs, inputs) along the last axis."""

    weight: Floats
    bias: Floats | None

    def ready(self) -> Ready:
        norm, matrix = spectral_norm_upper_bound(self.weight), sliced(np.ascontiguousarray(self.weight.T))

        def run(x: BallArray) -> BallArray:
            y = x.times(matrix, norm)
            return y if self.bias is None else y.plus(from_floats(self.bias[None]))

        return Ready(run, norm, {"norm": norm}, self.weight)


@dataclass(frozen=True)
class MaxMin:
    """(max(a, b), min(a, b)) of the two halves a, b of the channels: 1-Lipschitz, as every sort is."""

    axis: int = 1

    def ready(self) -> Ready:
        def run(x: BallArray) -> BallArray:
            a, b = np.split(x.mantissa, 2, self.axis)
            return x.reshaped(np.concatenate([np.maximum(a, b), np.minimum(a, b)], self.axis))

        return Ready(run, arb(1))


@dataclass(frozen=True)
class SortedGroups:
    """Groups of neighbouring channels sorted, smallest first; all channels if ``size`` is None."""

    size: int | None
    axis: int = 1

    def ready(self) -> Ready:
        def run(x: BallArray) -> BallArray:
            moved = np.moveaxis(x.mantissa, self.axis, -1)
            groups = moved.reshape(*moved.shape[:-1], -1, self.size or moved.shape[-1])
            return x.reshaped(np.moveaxis(np.sort(groups, -1).reshape(moved.shape), -1, self.axis))

        return Ready(run, arb(1))


@dataclass(frozen=True)
class Rectifier:
    """max(x, 0)."""

    def ready(self) -> Ready:
        return Ready(lambda x: x.reshaped(np.maximum(x.mantissa, 0)), arb(1))


@dataclass(frozen=True)
class Rearrangement:
    """A permutation of the entries, perhaps with zeros between them, as a function of arrays (n, *input)."""

    permute: Callable[[Integers], Integers]

    def ready(self) -> Ready:
        return Ready(lambda x: x.reshaped(self.permute(x.mantissa)), arb(1))


@dataclass(frozen=True)
class Fold:
    """z -> z - 2 min(0, v.z) v with v = (sin, -cos)(theta / 2), for pairs z = (a_j, b_j) across the halves.

    ``theta`` is (folds, pairs): one fold after the other. A fold moves two points no further apart.
    """

    theta: Floats

    def ready(self) -> Ready:
        turns = [[(arb(float(t)) / 2).sin_cos() for t in row] for row in self.theta]

        def run(x: BallArray) -> BallArray:
            for row in turns:
                x = _folded(x, [s for s, _ in row], [c for _, c in row])
            return x

        return Ready(run, arb(1))


def _folded(x: BallArray, sines: list[arb], cosines: list[arb]) -> BallArray:
    """One fold, computed from exact numbers: what was unsure before is moved no further apart, and added."""
    a, b = (BallArray(half, x.exponent, arb(0)) for half in np.split(x.mantissa, 2, 1))
    inner = a.scaled_channels(sines).plus(b.scaled_channels([-c for c in cosines]))
    below = inner.reshaped(np.minimum(inner.mantissa, 0)).scaled(arb(2))
    a = a.plus(below.scaled_channels([-s for s in sines]))
    b = b.plus(below.scaled_channels(cosines))
    exponent = max(a.exponent, b.exponent)
    a, b = a.at_exponent(exponent), b.at_exponent(exponent)
    both = BallArray(np.concatenate([a.mantissa, b.mantissa], 1), exponent, x.error)
    return both.with_error(a.error + b.error)


def per_channel(values: Floats, x: BallArray) -> BallArray:
    """(channels,) or (1,) as one array that fits those of x."""
    return from_floats(values.reshape(1, -1, *(1,) * (x.mantissa.ndim - 2)))


@dataclass(frozen=True)
class Dense:
    """W x + b for x with all entries in a row, b one for each channel.

    Arguments:
        weight: (entries out, entries in).
        output_shape: (channels, *size).
        bias: (channels,) or None.
    """

    weight: Floats
    output_shape: tuple[int, ...]
    bias: Floats | None

    def ready(self) -> Ready:
        norm, matrix = spectral_norm_upper_bound(self.weight), sliced(np.ascontiguousarray(self.weight.T))

        def run(x: BallArray) -> BallArray:
            y = x.reshaped(x.mantissa.reshape(len(x.mantissa), -1)).times(matrix, norm)
            y = y.reshaped(y.mantissa.reshape(len(y.mantissa), *self.output_shape))
            return y if self.bias is None else y.plus(per_channel(self.bias, y))

        return Ready(run, norm, {"norm": norm})


@dataclass(frozen=True)
class ResidualSum:
    """r(a(x)) + s(a(x)), or r(a(x)) + x where there is no s; each a list of layers."""

    activation: Sequence[Layer]
    residual: Sequence[Layer]
    shortcut: Sequence[Layer] | None

    def ready(self) -> Ready:
        active, residual = _chained(self.activation), _chained(self.residual)
        shortcut = None if self.shortcut is None else _chained(self.shortcut)

        def run(x: BallArray) -> BallArray:
            y = active.run(x)
            return residual.run(y).plus(x if shortcut is None else shortcut.run(y))

        beside = arb(1) if shortcut is None else shortcut.lipschitz * active.lipschitz
        return Ready(run, (beside + residual.lipschitz * active.lipschitz).upper())


def _chained(layers: Sequence[Layer]) -> Ready:
    parts = [layer.ready() for layer in layers]

    def run(x: BallArray) -> BallArray:
        for part in parts:
            x = part.run(x)
        return x

    bound = arb(1)
    for part in parts:
        bound = (bound * part.lipschitz).upper()
    return Ready(run, bound)
