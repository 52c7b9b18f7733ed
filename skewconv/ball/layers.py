"""Layers with proven bounds, from NumPy arrays: what each does to a ball, and what it stretches by at most.

Sums of products are of integers; norms of filters and gains of polynomials are proven.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from flint import arb, fmpq, fmpq_poly

from skewconv.ball.array import BallArray, concatenated, from_floats, largest, power_of_two
from skewconv.ball.exact import Floats, Integers, Sliced, sliced
from skewconv.ball.norms import (
    absolute_norm,
    skew_norm_upper_bound,
    spectral_norm_upper_bound,
    spread,
    torus_norm_upper_bound,
)
from skewconv.errors import ArgumentError

Map: TypeAlias = Callable[[BallArray], BallArray]
Pads: TypeAlias = Sequence[tuple[int, int]]


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


@dataclass(frozen=True)
class Frame:
    """Images of a size, in a border of zeros or on a torus, and how a filter moves over them."""

    size: Sequence[int]
    circular: bool
    stride: Sequence[int]
    dilation: Sequence[int]
    groups: int = 1

    def torus(self, room: Sequence[int]) -> tuple[int, ...]:
        """A torus with room beside the image, where that is not a torus itself."""
        return tuple(n if self.circular else n + r for n, r in zip(self.size, room, strict=True))


def unshuffled(x: Integers, stride: Sequence[int]) -> Integers:
    """Pixels become channels: (n, c, *size) -> (n, c prod(stride), *size / stride), offsets in row-major order."""
    parts = [x]
    for axis, s in enumerate(stride, 2):
        parts = [part[(slice(None),) * axis + (slice(offset, None, s),)] for part in parts for offset in range(s)]
    return np.stack(parts, 2).reshape(x.shape[0], -1, *parts[0].shape[2:])


def shuffled(y: Integers, stride: Sequence[int]) -> Integers:
    axes, channels = len(stride), y.shape[1] // math.prod(stride)
    split = y.reshape(len(y), channels, *stride, *y.shape[2:])
    order = [axis for j in range(axes) for axis in (2 + axes + j, 2 + j)]
    size = (n * s for n, s in zip(y.shape[2:], stride, strict=True))
    return split.transpose(0, 1, *order).reshape(len(y), channels, *size)


def padded_channels(x: Integers, channels: int) -> Integers:
    """Channels of zeros after those that are there."""
    return np.concatenate([x, np.zeros((len(x), channels - x.shape[1], *x.shape[2:]), dtype=x.dtype)], 1)


def same_pads(kernel: Sequence[int], dilation: Sequence[int]) -> Pads:
    """(before, after) along each axis such that a convolution keeps the size; even kernels reach further behind."""
    return [(d * ((k - 1) // 2), d * (k // 2)) for k, d in zip(kernel, dilation, strict=True)]


def windows(x: Integers, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Integers:
    """What each tap of a kernel reads of an image with its border: (n, c, *size) -> (taps, n, c, *made)."""
    axes = len(kernel)
    extents = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    view = np.lib.stride_tricks.sliding_window_view(x, extents, tuple(range(2, 2 + axes)))
    steps: tuple[slice, ...] = tuple(slice(None, None, step) for step in (1, 1, *stride, *dilation))
    taps = np.moveaxis(view[steps], range(-axes, 0), range(axes))
    return taps.reshape(-1, *taps.shape[axes:])


def convolver(weight: Floats, norm: arb, pads: Pads, frame: Frame, *, strides: bool = False) -> Map:
    """(n, c_in, *size) -> (n, c_out, *made) for a filter (c_out, c_in, *kernel) whose map has at most this norm."""
    steps = frame.stride if strides else (1,) * len(pads)
    flat = weight.reshape(*weight.shape[:2], -1)
    matrix = sliced(np.ascontiguousarray(flat.transpose(2, 1, 0).reshape(-1, len(weight))))

    def run(x: BallArray) -> BallArray:
        wide = x.mantissa
        if frame.circular:
            for axis, (before, after) in enumerate(pads, 2):
                wide = np.take(wide, range(-before, wide.shape[axis] + after), axis, mode="wrap")
        else:
            wide = np.pad(wide, ((0, 0), (0, 0), *pads))
        columns = np.concatenate(windows(wide, weight.shape[2:], steps, frame.dilation), 1)
        y = x.reshaped(np.moveaxis(columns, 1, -1)).times(matrix, norm)
        return y.reshaped(np.moveaxis(y.mantissa, -1, 1))

    return run


def convolution(weight: Floats, bias: Floats | None, pads: Pads, frame: Frame) -> Layer:
    """PyTorch's convolution with a filter (c_out, c_in / groups, *kernel) and any pads (before, after)."""
    blocks = np.split(weight, frame.groups)
    torus = frame.torus([d * (k - 1) for k, d in zip(weight.shape[2:], frame.dilation, strict=True)])
    # A filter with gaps is one with zeros between its taps.
    norm = largest([torus_norm_upper_bound(spread(block, frame.dilation), torus) for block in blocks])
    runs = [convolver(block, norm, pads, frame, strides=True) for block in blocks]

    def run(x: BallArray) -> BallArray:
        # Run from a point: the error of x is stretched by the norm of the whole.
        parts = [f(x.point(part)) for f, part in zip(runs, np.split(x.mantissa, frame.groups, 1), strict=True)]
        return plus_channels(concatenated(parts, 1).with_error(norm * x.error), bias)

    return Layer(run, norm, norm)


def residual_step(weight: Floats, scale: Floats, bias: Floats | None, outputs: int, frame: Frame) -> Layer:
    """keep o (x - 2 W S relu(W^T x + b)) o pad o psi, S diagonal and not negative, on images in the frame after psi.

    With m = ||W S^(1/2)|| its Jacobians are between I - 2 m^2 and I, so that max(1, 2 m^2 - 1) is a bound. The weight
    is the filter of W^T, (hidden, channels, k, k); the scale, the diagonal of S, is (hidden,), or (1,) for all.
    """
    kernel, scale = weight.shape[2:], np.broadcast_to(scale, (len(weight),))
    torus = frame.torus([(k + 1) // 2 for k in kernel])
    scaled = np.sqrt(scale)[:, None, None, None] * weight
    # Entries of the scaled filter were rounded twice.
    norm = (torus_norm_upper_bound(scaled, torus) + power_of_two(-51) * absolute_norm(scaled)).upper()
    bound = (2 * norm * norm - 1).max(arb(1)).upper()
    pads, rough = same_pads(kernel, frame.dilation), absolute_norm(weight)
    there = convolver(weight, rough, pads, frame)
    back = convolver(np.flip(weight.swapaxes(0, 1), (2, 3)), rough, [(b, a) for a, b in pads], frame)
    twice = [-2 * arb(float(s)) for s in scale]

    def run(x: BallArray) -> BallArray:
        # Run from a point: the error of x is stretched by the bound of the whole, and not by both convolutions.
        point = x.point(padded_channels(unshuffled(x.mantissa, frame.stride), weight.shape[1]))
        h = plus_channels(there(point), bias)
        y = point.plus(back(h.reshaped(np.maximum(h.mantissa, 0)).scaled_channels(twice)))
        return y.reshaped(y.mantissa[:, :outputs]).with_error(bound * x.error)

    return Layer(run, bound, norm)


def pool(kernel: Sequence[int], stride: Sequence[int], *, means: bool) -> Layer:
    """Means or maxima of windows that lie inside of the image.

    For means ||A||^2 <= windows that hold a pixel / pixels of a window; for maxima the divisor is 1.
    """
    overlap = math.prod(-(-k // s) for k, s in zip(kernel, stride, strict=True))
    count = math.prod(kernel)
    bound = (arb(overlap) / count if means else arb(overlap)).sqrt().upper()

    def run(x: BallArray) -> BallArray:
        seen = windows(x.mantissa, kernel, stride, (1,) * len(kernel))
        y = x.point(seen.sum(0)).scaled(arb(1) / count) if means else x.point(seen.max(0))
        return y.with_error(bound * x.error)

    return Layer(run, bound)


def spectral(
    real_weight: Floats,
    weight: Floats,
    tables: Sequence[Floats],
    bias: Floats | None,
    groups: int,
    stride: Sequence[int],
    *,
    upsamples: bool,
) -> Layer:
    """psi, T^t B T for a transform T and matrices B, then the bias; or T^t B T, psi back, then the bias.

    Matrices (inputs, outputs) of real frequencies, and (2 inputs, 2 outputs) of conjugate pairs, real and imaginary
    parts side by side, for each group. The tables are those of the two steps of T, along rows and along columns, at the
    ends and between them, taken as they are.
    """
    norm = largest([spectral_norm_upper_bound(block) for blocks in (real_weight, weight) for block in blocks])
    row_norm, *norms = (spectral_norm_upper_bound(table) for table in tables)
    column_norm = largest(norms)
    table_norm = (row_norm * column_norm).upper()
    bound = (table_norm * norm * table_norm).upper()
    forth, back = ([sliced(np.ascontiguousarray(t)) for t in each] for each in ([t.T for t in tables], tables))
    products = [[sliced(np.ascontiguousarray(block)) for block in blocks] for blocks in (real_weight, weight)]
    width, height, alone = len(tables[0]), len(tables[1]), len(real_weight) // groups
    ends, inside = 2 - width % 2, (width - 1) // 2
    reals = alone // ends

    def along_columns(values: BallArray, steps: Sequence[Sliced]) -> BallArray:
        """The second step, forth or back: (n, channels, columns, height) as rows of the ends and rows between them."""
        outer, inner = np.split(values.mantissa, [ends], 2)
        made = [values.point(outer).times(steps[1], column_norm)]
        if inside:
            complex_columns = inner.reshape(*inner.shape[:2], inside, 2 * height)
            between = values.point(complex_columns).times(steps[2], column_norm)
            made.append(between.reshaped(between.mantissa.reshape(inner.shape)))
        return concatenated(made, 2).with_error(column_norm * values.error)

    def run(x: BallArray) -> BallArray:
        z = x.mantissa if upsamples else unshuffled(x.mantissa, stride)
        n, channels, *size = z.shape
        # Run from a point: the error of x is stretched by the bound of the whole.
        waves = x.point(z.reshape(n, channels, height, width)).times(forth[0], row_norm)
        waves = along_columns(waves.reshaped(waves.mantissa.swapaxes(2, 3)), forth)
        edge, middle = waves.mantissa[:, :, :ends], waves.mantissa[:, :, ends:]
        parts_of = [part.reshape(n, channels, -1) for part in (edge[..., :reals], middle, edge[..., reals:])]
        waves = waves.reshaped(np.concatenate(parts_of, 2))
        columns = []
        for parts, matrices, those in zip((1, 2), products, np.split(waves.mantissa, [alone], 2), strict=True):
            if matrices:
                # Frequencies and groups times (n, 1, parts * inputs), and the way back.
                split = those.reshape(n, groups, channels // groups, -1, parts).transpose(3, 1, 0, 4, 2)
                rows = split.reshape(len(matrices), n, 1, -1)
                moved = [waves.point(row).times(matrix, norm) for row, matrix in zip(rows, matrices, strict=True)]
                made = concatenated(moved, 1)
                several = made.mantissa.reshape(n, len(matrices) // groups, groups, parts, -1).transpose(0, 2, 4, 1, 3)
                columns.append(made.reshaped(several.reshape(n, -1, those.shape[2])))
        y = concatenated(columns, 2).with_error(norm * waves.error)
        edge, middle, rest = np.split(y.mantissa, [alone, alone + 2 * inside * height], 2)
        edge, rest = (part.reshape(*part.shape[:2], ends, -1) for part in (edge, rest))
        whole = [np.concatenate([edge, rest], 3), middle.reshape(*middle.shape[:2], 2 * inside, height)]
        y = along_columns(y.reshaped(np.concatenate(whole, 2)), back)
        y = y.reshaped(y.mantissa.swapaxes(2, 3)).times(back[0], row_norm).with_error(bound * x.error)
        image = y.mantissa.reshape(n, -1, *size)
        return plus_channels(y.reshaped(shuffled(image, stride) if upsamples else image), bias)

    return Layer(run, bound, norm)


def skew_exponential(
    weight: Floats,
    coefficients: Sequence[float],
    norm_bound: float,
    series: str,
    outputs: int,
    bias: Floats | None,
    frame: Frame,
    *,
    adjoint: bool = False,
) -> Layer:
    """keep o p(J) o pad o psi of a skew convolution J, or its adjoint, psi^T o keep o p(-J) o pad, then the bias.

    The filter is (m, m / groups, *kernel) with odd sizes, applied to images in the frame after psi, which makes
    channels of pixels; the norm bound of p is believed only where it is proven here. Of p(J) the outputs are kept.
    """
    blocks, kernel = np.split(weight, frame.groups), weight.shape[2:]
    torus = frame.torus([d * (k // 2) for k, d in zip(kernel, frame.dilation, strict=True)])
    norm = largest([skew_norm_upper_bound(block, norm_bound, torus, frame.dilation) for block in blocks])
    powers = power_coefficients(coefficients, norm_bound, series)
    gain = largest_gain(powers, norm)
    weights = [arb(a) * math.factorial(k) * (-1 if adjoint else 1) ** k for k, a in enumerate(powers)]
    products = [convolver(block, norm, same_pads(kernel, frame.dilation), frame) for block in blocks]

    def group(x: BallArray, index: int) -> BallArray:
        term = x.reshaped(padded_channels(x.mantissa, weight.shape[1]))
        total = term.scaled(weights[0])
        for k, factor in enumerate(weights[1:], 1):
            # J^k x / k!, which stays small.
            term = products[index](term).scaled(arb(1) / k)
            total = total.plus(term.scaled(factor))
        return total.reshaped(total.mantissa[:, : outputs // frame.groups])

    def run(x: BallArray) -> BallArray:
        z = x.mantissa if adjoint else unshuffled(x.mantissa, frame.stride)
        # Run from a point: the error of x is stretched by the gain, and not by every term.
        parts = [group(x.point(part), index) for index, part in enumerate(np.split(z, frame.groups, 1))]
        y = concatenated(parts, 1).with_error(gain * x.error)
        return plus_channels(y.reshaped(shuffled(y.mantissa, frame.stride)) if adjoint else y, bias)

    return Layer(run, gain, norm)


def power_coefficients(coefficients: Sequence[float], norm_bound: float, series: str) -> list[fmpq]:
    """a_k with p(J) = sum_k a_k J^k, exactly, for floats c_k that stand for themselves."""
    exact = [fmpq(*c.as_integer_ratio()) for c in coefficients]
    if series == "taylor":
        return exact
    if series != "chebyshev":
        raise ArgumentError(f"series must be 'taylor' or 'chebyshev', got {series!r}: no other basis is known here")
    z, one = fmpq_poly([0, 1]), fmpq_poly([1])
    before, now, total = one, z, fmpq_poly([exact[0]])
    for c in exact[1:]:
        total += c * now
        before, now = now, 2 * z * now + before
    rho = fmpq(*norm_bound.as_integer_ratio())
    return [fmpq(total[k]) / rho**k for k in range(len(exact))]


def largest_gain(powers: Sequence[fmpq], norm: arb) -> arb:
    """At least max |p(i t)| for |t| <= norm: its square is a polynomial in s = t^2, largest at an end or where flat."""
    even = fmpq_poly([(-1) ** (k // 2) * a for k, a in enumerate(powers) if k % 2 == 0])
    odd = fmpq_poly([(-1) ** (k // 2) * a for k, a in enumerate(powers) if k % 2 == 1] or [0])
    square = even * even + fmpq_poly([0, 1]) * odd * odd
    end = (norm * norm).upper()
    candidates, slope = [arb(0), end], square.derivative()
    roots: Any = slope.complex_roots() if slope.degree() > 0 else []
    # Every root lies in one of these balls; one that cannot be told from a real number counts as real.
    for root, _ in roots:
        if root.imag.contains(0) and not bool(root.real < 0) and not bool(root.real > end):
            candidates.append(root.real)
    return largest([_at(square, s) for s in candidates]).sqrt().upper()


def _at(polynomial: fmpq_poly, s: arb) -> arb:
    total = arb(0)
    for k in range(polynomial.degree(), -1, -1):
        total = total * s + arb(polynomial[k])
    return total
