"""Convolutions, their polynomials, residual steps, pools, matrices a frequency: sums in integers, proven norms."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from flint import arb, fmpq, fmpq_poly

from skewconv.ball.array import BallArray, concatenated, largest, power_of_two
from skewconv.ball.exact import Floats, Integers, sliced
from skewconv.ball.layers import Layer, Map, plus_channels
from skewconv.ball.norms import (
    absolute_norm,
    skew_norm_upper_bound,
    spectral_norm_upper_bound,
    spread,
    torus_norm_upper_bound,
)
from skewconv.errors import ArgumentError

Pads: TypeAlias = Sequence[tuple[int, int]]


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
    table: Floats,
    bias: Floats | None,
    groups: int,
    stride: Sequence[int],
    *,
    upsamples: bool,
) -> Layer:
    """psi, T^t B T for a table T and matrices B, then the bias; or T^t B T, psi back, then the bias.

    Matrices (inputs, outputs) of real frequencies, and (2 inputs, 2 outputs) of conjugate pairs, real and imaginary
    parts side by side, for each group. The table (pixels, pixels) is taken as it is.
    """
    norm = largest([spectral_norm_upper_bound(block) for blocks in (real_weight, weight) for block in blocks])
    table_norm = spectral_norm_upper_bound(table)
    bound = (table_norm * norm * table_norm).upper()
    forth, back = (sliced(np.ascontiguousarray(t)) for t in (table.T, table))
    products = [[sliced(np.ascontiguousarray(block)) for block in blocks] for blocks in (real_weight, weight)]
    alone = len(real_weight) // groups

    def run(x: BallArray) -> BallArray:
        z = x.mantissa if upsamples else unshuffled(x.mantissa, stride)
        n, channels, *size = z.shape
        # Run from a point: the error of x is stretched by the bound of the whole.
        waves = x.point(z.reshape(n, channels, -1)).times(forth, table_norm)
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
        y = y.times(back, table_norm).with_error(bound * x.error)
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
