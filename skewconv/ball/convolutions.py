"""Convolutions, residual steps and pools: their sums in integers, their norms by the sharpest of several proofs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product as choices

import numpy as np
from flint import arb

from skewconv.ball.array import BallArray, largest
from skewconv.ball.exact import Floats, Integers, Sliced, sliced
from skewconv.ball.layers import Ready, per_channel
from skewconv.ball.norms import (
    differences,
    nearly_orthogonal_norm_upper_bound,
    scaled_gram_upper_bound,
    torus_norm_upper_bound,
)
from skewconv.ball.pixels import as_matrix, padded_channels, patches, unshuffled

# Kernels with more taps have their norm from the symbols at the frequencies of the image.
_FEW_TAPS = 25
# A proof for every image size is as good as one for this size, if the norm is at most this.
_GOOD = 1 + 1e-9


def filter_norm(weight: Floats, torus: Sequence[int], *, any_size: bool = True) -> arb:
    """At least the norm of the convolution with a filter (c_out, c_in, *kernel) on images inside of a torus."""
    found = []
    if any_size and math.prod(weight.shape[2:]) <= _FEW_TAPS:
        places = list(choices(*map(range, weight.shape[2:])))
        tall = weight if weight.shape[0] >= weight.shape[1] else weight.swapaxes(0, 1)
        taps = list(np.moveaxis(tall.reshape(*tall.shape[:2], -1), -1, 0))
        found.append(nearly_orthogonal_norm_upper_bound(taps, differences(places)))
        found.append(scaled_gram_upper_bound(weight).sqrt().upper())
    if not any(bool(norm <= _GOOD) for norm in found):
        found.append(torus_norm_upper_bound(weight, tuple(torus), None))
    least = found[0]
    for norm in found[1:]:
        least = norm.min(least)
    return least.upper()


@dataclass(frozen=True)
class Convolution:
    """psi, then a convolution with a filter (c_out, c_in, *kernel) that keeps the size, then the bias.

    ``torus`` holds the image, with room for the taps where zeros surround it.
    """

    weight: Floats
    stride: tuple[int, ...]
    bias: Floats | None
    padding_mode: str
    torus: tuple[int, ...]

    def ready(self) -> Ready:
        norm, matrix = filter_norm(self.weight, self.torus), sliced(as_matrix(self.weight))

        def run(x: BallArray) -> BallArray:
            folded = x.reshaped(unshuffled(x.mantissa, self.stride))
            columns = patches(folded.mantissa, self.weight.shape[2:], (1,) * len(self.stride), self.padding_mode)
            y = folded.reshaped(columns).times(matrix, norm)
            y = y.reshaped(np.moveaxis(y.mantissa, -1, 1))
            return y if self.bias is None else y.plus(per_channel(self.bias, y))

        return Ready(run, norm, {"norm": norm})


@dataclass(frozen=True)
class StridedConvolution:
    """PyTorch's convolution: (c_out, c_in / groups, *kernel), any padding (before, after), stride, dilation, groups."""

    weight: Floats
    bias: Floats | None
    pads: tuple[tuple[int, int], ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    padding_mode: str
    torus: tuple[int, ...]

    def ready(self) -> Ready:
        blocks = np.split(self.weight, self.groups)
        # A filter with gaps is one with zeros between its taps.
        norm = largest([filter_norm(_spread(block, self.dilation), self.torus) for block in blocks])
        matrices = [sliced(as_matrix(block)) for block in blocks]

        def run(x: BallArray) -> BallArray:
            wide = _bordered(x.mantissa, self.pads, circular=self.padding_mode == "circular")
            parts = []
            for part, matrix in zip(np.split(wide, self.groups, 1), matrices, strict=True):
                columns = np.concatenate(windows(part, self.weight.shape[2:], self.stride, self.dilation), 1)
                y = BallArray(np.moveaxis(columns, 1, -1), x.exponent, arb(0)).times(matrix, norm)
                parts.append(y.reshaped(np.moveaxis(y.mantissa, -1, 1)))
            # Run from a point: what was known of x is carried by the norm.
            y = _beside(parts).with_error(norm * x.error)
            return y if self.bias is None else y.plus(per_channel(self.bias, y))

        return Ready(run, norm, {"norm": norm})


def _beside(parts: Sequence[BallArray]) -> BallArray:
    """Arrays side by side along the channels; what each does not know is added up."""
    exponent = max(part.exponent for part in parts)
    parts = [part.at_exponent(exponent) for part in parts]
    y = BallArray(np.concatenate([part.mantissa for part in parts], 1), exponent, arb(0))
    for part in parts:
        y = y.with_error(part.error)
    return y


def _spread(block: Floats, dilation: Sequence[int]) -> Floats:
    if all(step == 1 for step in dilation):
        return block
    kernel = [step * (k - 1) + 1 for k, step in zip(block.shape[2:], dilation, strict=True)]
    wide = np.zeros((*block.shape[:2], *kernel))
    place: tuple[slice, ...] = (slice(None), slice(None), *(slice(None, None, step) for step in dilation))
    wide[place] = block
    return wide


def _bordered(x: Integers, pads: Sequence[tuple[int, int]], *, circular: bool) -> Integers:
    widths = ((0, 0), (0, 0), *pads)
    return np.pad(x, widths, mode="wrap") if circular else np.pad(x, widths)


def windows(x: Integers, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> list[Integers]:
    """What each tap of a kernel reads of an image with its border: (n, c, *size) -> arrays (n, c, *made)."""
    sizes = zip(x.shape[2:], kernel, stride, dilation, strict=True)
    made = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in sizes]
    found = []
    for tap in choices(*map(range, kernel)):
        starts = [t * d for t, d in zip(tap, dilation, strict=True)]
        places = [slice(a, a + (m - 1) * s + 1, s) for a, m, s in zip(starts, made, stride, strict=True)]
        index: tuple[slice, ...] = (slice(None), slice(None), *places)
        found.append(x[index])
    return found


@dataclass(frozen=True)
class MeanPool:
    """Means of windows that lie inside of the image: ||A||^2 <= windows that hold a pixel / pixels of a window."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]

    def ready(self) -> Ready:
        count = math.prod(self.kernel)
        bound = (arb(_overlap(self.kernel, self.stride)) / count).sqrt().upper()

        def run(x: BallArray) -> BallArray:
            total = np.zeros_like(windows(x.mantissa, self.kernel, self.stride, (1,) * len(self.kernel))[0])
            for part in windows(x.mantissa, self.kernel, self.stride, (1,) * len(self.kernel)):
                total = total + part
            point = BallArray(total, x.exponent, arb(0)).scaled(arb(1) / count)
            return point.with_error(bound * x.error)

        return Ready(run, bound)


@dataclass(frozen=True)
class MaxPool:
    """Maxima of windows that lie inside of the image."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]

    def ready(self) -> Ready:
        bound = arb(_overlap(self.kernel, self.stride)).sqrt().upper()

        def run(x: BallArray) -> BallArray:
            parts = windows(x.mantissa, self.kernel, self.stride, (1,) * len(self.kernel))
            most = parts[0]
            for part in parts[1:]:
                most = np.maximum(most, part)
            return BallArray(most, x.exponent, (bound * x.error).upper())

        return Ready(run, bound)


def _overlap(kernel: Sequence[int], stride: Sequence[int]) -> int:
    """The most windows that hold one pixel."""
    return math.prod(math.ceil(Fraction(k, s)) for k, s in zip(kernel, stride, strict=True))


@dataclass(frozen=True)
class ResidualStep:
    """keep o (x - 2 W S relu(W^T x + b)) o pad o psi, S diagonal and not negative.

    With m = ||W S^(1/2)|| its Jacobians are between I - 2 m^2 and I, so that max(1, 2 m^2 - 1) is a bound.

    Arguments:
        weight: the filter of W^T, (hidden, channels, k, k).
        scale: the diagonal of S, (hidden,), or (1,) for a multiple of the identity.
        bias: b, (hidden,) or None.
        outputs: channels that are kept.
        torus: holds the image, with room for the taps where zeros surround it.
    """

    weight: Floats
    scale: Floats
    bias: Floats | None
    outputs: int
    stride: tuple[int, ...]
    padding_mode: str
    torus: tuple[int, ...]

    def ready(self) -> Ready:
        scale = np.broadcast_to(self.scale, (len(self.weight),))
        # W^T W acts on the hidden channels.
        hidden_first = np.ascontiguousarray(self.weight.swapaxes(0, 1))
        square = scaled_gram_upper_bound(hidden_first, np.ascontiguousarray(scale))
        norm = scaled_gram_upper_bound(hidden_first).sqrt().upper()
        if not bool(square <= _GOOD):
            norm = torus_norm_upper_bound(self.weight, self.torus, None).min(norm)
            square = (arb(float(scale.max())) * norm * norm).min(square)
        bound = (2 * square - 1).max(arb(1)).upper()
        back = _adjoint(self.weight)
        there, again = sliced(as_matrix(self.weight)), sliced(as_matrix(back))
        twice = [2 * arb(float(s)) for s in scale]

        def convolved(x: BallArray, filter_: Floats, matrix: Sliced) -> BallArray:
            columns = patches(x.mantissa, filter_.shape[2:], (1, 1), self.padding_mode)
            y = x.reshaped(columns).times(matrix, norm)
            return y.reshaped(np.moveaxis(y.mantissa, -1, 1))

        def run(x: BallArray) -> BallArray:
            z = padded_channels(unshuffled(x.mantissa, self.stride), self.weight.shape[1])
            # Run from a point: what was known of x is carried by the bound, and not through both convolutions.
            point = BallArray(z, x.exponent, arb(0))
            h = convolved(point, self.weight, there)
            h = h if self.bias is None else h.plus(per_channel(self.bias, h))
            moved = h.reshaped(np.maximum(h.mantissa, 0)).scaled_channels(twice)
            y = point.plus(convolved(moved, back, again).scaled(arb(-1)))
            return y.reshaped(y.mantissa[:, : self.outputs]).with_error(bound * x.error)

        return Ready(run, bound, {"norm": square.sqrt().upper()})


def _adjoint(weight: Floats) -> Floats:
    """The filter of the adjoint convolution, of odd sizes: (hidden, c, k, k) -> (c, hidden, k', k')."""
    (height, width), (down, right) = weight.shape[2:], (n // 2 for n in weight.shape[2:])
    result = np.zeros((weight.shape[1], weight.shape[0], 2 * down + 1, 2 * right + 1))
    for i, j in choices(range(height), range(width)):
        # The tap reads so far from the pixel, and its mirror image as far on the other side.
        below, beside = i - (height - 1) // 2, j - (width - 1) // 2
        result[:, :, down - below, right - beside] = weight[:, :, i, j].T
    return result
