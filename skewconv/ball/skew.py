"""The polynomial of a skew convolution, as the powers of J that its coefficients weigh."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from flint import arb

from skewconv.ball.array import BallArray, largest
from skewconv.ball.exact import Floats, sliced
from skewconv.ball.gain import largest_gain, power_coefficients
from skewconv.ball.layers import Ready, per_channel
from skewconv.ball.norms import filter_norm_upper_bound
from skewconv.ball.pixels import as_matrix, padded_channels, patches, shuffled, unshuffled
from skewconv.ball.torus import torus_norm_upper_bound


@dataclass(frozen=True)
class SkewExponential:
    """keep o p(J) o pad o psi of a skew convolution J, or its adjoint, psi^T o keep o p(-J) o pad.

    Arguments:
        weight: (m, m / groups, *kernel), odd sizes: the normalised skew filter.
        coefficients, norm_bound, series: of p.
        outputs: channels kept of p(J).
        stride: of psi, which makes channels of pixels.
        bias: (outputs,) after psi, or None.
        adjoint: whether it is the adjoint.
        torus: sizes of a torus that holds the image, if the norm is said to be that of images of this size only.
    """

    weight: Floats
    coefficients: Sequence[float]
    norm_bound: float
    series: str
    outputs: int
    stride: tuple[int, ...]
    bias: Floats | None
    padding_mode: Literal["zeros", "circular"] = "zeros"
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1
    adjoint: bool = False
    torus: tuple[int, ...] | None = None

    def ready(self) -> Ready:
        blocks = np.split(self.weight, self.groups)
        norm = largest([self._norm(block) for block in blocks])
        powers = power_coefficients(self.coefficients, self.norm_bound, self.series)
        gain = largest_gain(powers, norm)
        sign = -1 if self.adjoint else 1
        weights = [arb(a) * math.factorial(k) * sign**k for k, a in enumerate(powers)]
        matrices = [sliced(as_matrix(block)) for block in blocks]
        channels, kernel = self.weight.shape[1], self.weight.shape[2:]

        def group(x: BallArray, index: int) -> BallArray:
            term = x.reshaped(padded_channels(x.mantissa, channels))
            total = term.scaled(weights[0])
            for k, weight in enumerate(weights[1:], 1):
                # J^k x / k!, which stays small.
                columns = patches(term.mantissa, kernel, self.dilation, self.padding_mode)
                moved = term.reshaped(columns).times(matrices[index], norm)
                term = moved.reshaped(np.moveaxis(moved.mantissa, -1, 1)).scaled(arb(1) / k)
                total = total.plus(term.scaled(weight))
            kept = self.outputs // self.groups
            # What is known of the whole is known of the part; the map itself stretches by its gain at most.
            return total.reshaped(total.mantissa[:, :kept])

        def run(x: BallArray) -> BallArray:
            x = x if self.adjoint else x.reshaped(unshuffled(x.mantissa, self.stride))
            # Run from a point: what was known of x is carried by the gain, and not through every term.
            parts = [x.reshaped(part) for part in np.split(x.mantissa, self.groups, 1)]
            ys = [group(BallArray(p.mantissa, p.exponent, arb(0)), i) for i, p in enumerate(parts)]
            exponent = max(y.exponent for y in ys)
            ys = [y.at_exponent(exponent) for y in ys]
            y = BallArray(np.concatenate([y.mantissa for y in ys], 1), exponent, (gain * x.error).upper())
            for part in ys:
                y = y.with_error(part.error)
            y = y.reshaped(shuffled(y.mantissa, self.stride)) if self.adjoint else y
            return y if self.bias is None else y.plus(per_channel(self.bias, y))

        return Ready(run, gain, {"norm": norm, "gain": gain})

    def _norm(self, block: Floats) -> arb:
        if self.torus is None:
            return filter_norm_upper_bound(block, self.norm_bound)
        return torus_norm_upper_bound(block, self.torus, self.norm_bound)
