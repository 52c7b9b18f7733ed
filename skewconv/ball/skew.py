"""The polynomial of a skew convolution: the powers of J that its coefficients weigh, and its gain on an interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from flint import acb, arb, fmpq, fmpq_poly

from skewconv.ball.array import BallArray, largest
from skewconv.ball.exact import Floats, sliced
from skewconv.ball.layers import Ready, per_channel
from skewconv.ball.norms import filter_norm_upper_bound, torus_norm_upper_bound
from skewconv.ball.pixels import as_matrix, padded_channels, patches, shuffled, unshuffled
from skewconv.errors import ArgumentError


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


def power_coefficients(coefficients: Sequence[float], norm_bound: float, series: str) -> list[fmpq]:
    """a_k with p(J) = sum_k a_k J^k, exactly, for floats c_k that stand for themselves.

    >>> power_coefficients([1.0, 1.0, 0.5], 2.0, "taylor")
    [1, 1, 1/2]
    >>> power_coefficients([1.0, 0.0, 1.0], 2.0, "chebyshev")
    [2, 0, 1/2]
    """
    exact = [_rational(c) for c in coefficients]
    if series == "taylor":
        return exact
    if series != "chebyshev":
        raise ArgumentError(f"series must be 'taylor' or 'chebyshev', got {series!r}: no other basis is known here")
    z, one = fmpq_poly([0, 1]), fmpq_poly([1])
    before, now, total = one, z, fmpq_poly([exact[0]])
    for c in exact[1:]:
        total += c * now
        before, now = now, 2 * z * now + before
    rho = _rational(norm_bound)
    return [fmpq(total[k]) / rho**k for k in range(len(exact))]


def largest_gain(powers: Sequence[fmpq], norm: arb) -> arb:
    """At least max |p(i t)| for |t| <= norm: its square is a polynomial in s = t^2, largest at an end or where flat.

    >>> largest_gain([fmpq(1), fmpq(1)], arb(1)).str(6, radius=False)
    '1.41421'
    """
    even = fmpq_poly([(-1) ** (k // 2) * a for k, a in enumerate(powers) if k % 2 == 0])
    odd = fmpq_poly([(-1) ** (k // 2) * a for k, a in enumerate(powers) if k % 2 == 1] or [0])
    square = even * even + fmpq_poly([0, 1]) * odd * odd
    end = (norm * norm).upper()
    candidates = [arb(0), end]
    slope = square.derivative()
    if slope.degree() > 0:
        # Every root lies in one of these balls; one that cannot be told from a real number counts as real.
        for root in _roots(slope):
            if root.imag.contains(0) and not bool(root.real < 0) and not bool(root.real > end):
                candidates.append(root.real)
    values = [_at(square, s) for s in candidates]
    largest = values[0]
    for value in values[1:]:
        largest = value.max(largest)
    return largest.sqrt().upper()


def _roots(polynomial: fmpq_poly) -> list[acb]:
    """Balls that hold every root."""
    pairs: Any = polynomial.complex_roots()
    return [root for root, _ in pairs]


def _at(polynomial: fmpq_poly, s: arb) -> arb:
    total = arb(0)
    for k in range(polynomial.degree(), -1, -1):
        total = total * s + arb(polynomial[k])
    return total


def _rational(value: float) -> fmpq:
    numerator, denominator = value.as_integer_ratio()
    return fmpq(numerator, denominator)
