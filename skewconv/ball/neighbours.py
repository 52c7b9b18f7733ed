"""Layers of the neighbours: a convolution bounded by its row sums (AOL), and a residual step (SLL)."""

from dataclasses import dataclass
from itertools import product as choices

import numpy as np
from flint import arb

from skewconv.ball.array import BallArray
from skewconv.ball.exact import Floats, Sliced, sliced
from skewconv.ball.layers import Ready, per_channel
from skewconv.ball.pixels import as_matrix, padded_channels, patches, unshuffled
from skewconv.ball.row_sums import scaled_gram_upper_bound


@dataclass(frozen=True)
class RowSumConvolution:
    """psi, then a convolution with a filter (c_out, c_in, k, k), then the bias; its norm by absolute row sums.

    ``q`` (c_in,) is a guess that makes the bound sharp.
    """

    weight: Floats
    stride: tuple[int, ...]
    bias: Floats | None
    padding_mode: str
    q: Floats

    def ready(self) -> Ready:
        norm, matrix = scaled_gram_upper_bound(self.weight, q=self.q).sqrt().upper(), sliced(as_matrix(self.weight))

        def run(x: BallArray) -> BallArray:
            folded = x.reshaped(unshuffled(x.mantissa, self.stride))
            columns = patches(folded.mantissa, self.weight.shape[2:], (1, 1), self.padding_mode)
            y = folded.reshaped(columns).times(matrix, norm)
            y = y.reshaped(np.moveaxis(y.mantissa, -1, 1))
            return y if self.bias is None else y.plus(per_channel(self.bias, y))

        return Ready(run, norm, {"norm": norm})


@dataclass(frozen=True)
class ResidualStep:
    """keep o (x - 2 W S relu(W^T x + b)) o pad o psi, S diagonal and not negative.

    With m = ||W S^(1/2)|| its Jacobians are between I - 2 m^2 and I, so that max(1, 2 m^2 - 1) is a bound.

    Arguments:
        weight: the filter of W^T, (hidden, channels, k, k).
        scale: the diagonal of S, (hidden,).
        bias: b, (hidden,) or None.
        outputs: channels that are kept.
        q: (hidden,), a guess that makes the bound sharp, or None.
    """

    weight: Floats
    scale: Floats
    bias: Floats | None
    outputs: int
    stride: tuple[int, ...]
    padding_mode: str
    q: Floats | None

    def ready(self) -> Ready:
        # W^T W acts on the hidden channels.
        hidden_first = np.ascontiguousarray(self.weight.swapaxes(0, 1))
        square = scaled_gram_upper_bound(hidden_first, self.scale, self.q)
        bound = (2 * square - 1).max(arb(1)).upper()
        norm = scaled_gram_upper_bound(hidden_first).sqrt().upper()
        back = _adjoint(self.weight)
        there, again = sliced(as_matrix(self.weight)), sliced(as_matrix(back))
        twice = [2 * arb(float(s)) for s in self.scale]

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
