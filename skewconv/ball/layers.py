"""Layers with proven bounds, from NumPy arrays: what each does to a ball, and what it stretches by at most."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from flint import arb

from skewconv.ball.array import BallArray, concatenated, from_floats, largest
from skewconv.ball.exact import Floats, Integers, sliced
from skewconv.ball.norms import spectral_norm_upper_bound

Map: TypeAlias = Callable[[BallArray], BallArray]


@dataclass(frozen=True)
class Layer:
    """A map of balls, and upper bounds of its Lipschitz constant and of the norm of its filter or matrix.

    A linear layer has a matrix (outputs, inputs), for the differences of its rows.
    """

    run: Map
    lipschitz: arb
    norm: arb | None = None
    matrix: Floats | None = None


def rearrangement(permute: Callable[[Integers], Integers]) -> Layer:
    """Entries in another order, some of them, zeros besides, or sorted: a 1-Lipschitz map that rounds nothing."""
    return Layer(lambda x: x.reshaped(permute(x.mantissa)), arb(1))


def max_min(axis: int = 1) -> Layer:
    """(max(a, b), min(a, b)) of the two halves a, b of the channels."""

    def permute(x: Integers) -> Integers:
        a, b = np.split(x, 2, axis)
        return np.concatenate([np.maximum(a, b), np.minimum(a, b)], axis)

    return rearrangement(permute)


def group_sort(size: int | None, axis: int = 1) -> Layer:
    """Groups of neighbouring channels sorted, smallest first; all channels if ``size`` is None."""

    def permute(x: Integers) -> Integers:
        moved = np.moveaxis(x, axis, -1)
        groups = moved.reshape(*moved.shape[:-1], -1, size or moved.shape[-1])
        return np.moveaxis(np.sort(groups, -1).reshape(moved.shape), -1, axis)

    return rearrangement(permute)


def affine_channels(mean: Floats, factors: Sequence[arb], bias: Floats | None = None) -> Layer:
    """(x - mean) * factors + bias, one number a channel, or one for all."""

    def run(x: BallArray) -> BallArray:
        return plus_channels(plus_channels(x, -mean).scaled_channels(factors), bias)

    return Layer(run, largest([factor.abs_upper() for factor in factors]))


def plus_channels(x: BallArray, values: Floats | None) -> BallArray:
    """x plus one number a channel, (channels,) or (1,); x itself for None."""
    return x if values is None else x.plus(from_floats(values.reshape(1, -1, *(1,) * (x.mantissa.ndim - 2))))


def linear(weight: Floats, bias: Floats | None) -> Layer:
    """W x + b for W (outputs, inputs) along the last axis."""
    norm, matrix = spectral_norm_upper_bound(weight), sliced(np.ascontiguousarray(weight.T))

    def run(x: BallArray) -> BallArray:
        y = x.times(matrix, norm)
        return y if bias is None else y.plus(from_floats(bias[None]))

    return Layer(run, norm, norm, weight)


def dense(weight: Floats, output_shape: tuple[int, ...], bias: Floats | None) -> Layer:
    """W x for all entries of x in a row, and a bias for each channel of the outputs (channels, *size)."""
    flat = linear(weight, None)

    def run(x: BallArray) -> BallArray:
        y = flat.run(x.reshaped(x.mantissa.reshape(len(x.mantissa), -1)))
        return plus_channels(y.reshaped(y.mantissa.reshape(-1, *output_shape)), bias)

    return Layer(run, flat.lipschitz, flat.norm)


def householder(theta: Floats) -> Layer:
    """z -> z - 2 min(0, v.z) v with v = (sin, -cos)(theta / 2), for pairs z = (a_j, b_j) across the halves.

    ``theta`` is (folds, pairs): one fold after the other. A fold moves two points no further apart.
    """
    turns = [[(arb(float(t)) / 2).sin_cos() for t in row] for row in theta]

    def run(x: BallArray) -> BallArray:
        for row in turns:
            sines, cosines = zip(*row, strict=True)
            # Each fold is of a point: the error of x is moved no further apart, and added.
            a, b = (x.point(half) for half in np.split(x.mantissa, 2, 1))
            inner = a.scaled_channels(sines).plus(b.scaled_channels([-c for c in cosines]))
            below = inner.reshaped(np.minimum(inner.mantissa, 0)).scaled(arb(2))
            a = a.plus(below.scaled_channels([-s for s in sines]))
            b = b.plus(below.scaled_channels(cosines))
            x = concatenated([a, b], 1).with_error(x.error)
        return x

    return Layer(run, arb(1))


def chained(layers: Sequence[Layer]) -> Layer:
    """One after the other; the norm is that of the last."""

    def run(x: BallArray) -> BallArray:
        for layer in layers:
            x = layer.run(x)
        return x

    bound = arb(1)
    for layer in layers:
        bound = (bound * layer.lipschitz).upper()
    return Layer(run, bound, layers[-1].norm if layers else None)


def residual_sum(activation: Layer, residual: Layer, shortcut: Layer | None) -> Layer:
    """r(a(x)) + s(a(x)), or r(a(x)) + x where there is no s."""

    def run(x: BallArray) -> BallArray:
        y = activation.run(x)
        return residual.run(y).plus(x if shortcut is None else shortcut.run(y))

    beside = arb(1) if shortcut is None else shortcut.lipschitz * activation.lipschitz
    return Layer(run, (beside + residual.lipschitz * activation.lipschitz).upper())
