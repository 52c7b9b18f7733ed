"""The polynomial of a skew convolution: the powers of J that its coefficients weigh, and its gain on an interval."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from flint import arb, fmpq, fmpq_poly

from skewconv.ball.array import BallArray, concatenated, largest
from skewconv.ball.convolutions import convolver, padded_channels, same_pads, shuffled, unshuffled
from skewconv.ball.exact import Floats
from skewconv.ball.layers import Layer, plus_channels
from skewconv.ball.norms import skew_norm_upper_bound
from skewconv.errors import ArgumentError


def skew_exponential(
    weight: Floats,
    coefficients: Sequence[float],
    norm_bound: float,
    series: str,
    outputs: int,
    bias: Floats | None,
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int = 1,
    *,
    circular: bool,
    size: Sequence[int],
    adjoint: bool = False,
) -> Layer:
    """keep o p(J) o pad o psi of a skew convolution J, or its adjoint, psi^T o keep o p(-J) o pad, then the bias.

    The filter is (m, m / groups, *kernel) with odd sizes, applied to images of this size after psi, which makes
    channels of pixels; the norm bound of p is believed only where it is proven here. Of p(J) the outputs are kept.
    """
    blocks, kernel = np.split(weight, groups), weight.shape[2:]
    reach = [0 if circular else d * (k // 2) for k, d in zip(kernel, dilation, strict=True)]
    torus = tuple(n + r for n, r in zip(size, reach, strict=True))
    norm = largest([skew_norm_upper_bound(block, norm_bound, torus, dilation) for block in blocks])
    powers = power_coefficients(coefficients, norm_bound, series)
    gain = largest_gain(powers, norm)
    weights = [arb(a) * math.factorial(k) * (-1 if adjoint else 1) ** k for k, a in enumerate(powers)]
    pads, ones = same_pads(kernel, dilation), (1,) * len(kernel)
    products = [convolver(block, norm, pads, ones, dilation, circular=circular) for block in blocks]

    def group(x: BallArray, index: int) -> BallArray:
        term = x.reshaped(padded_channels(x.mantissa, weight.shape[1]))
        total = term.scaled(weights[0])
        for k, factor in enumerate(weights[1:], 1):
            # J^k x / k!, which stays small.
            term = products[index](term).scaled(arb(1) / k)
            total = total.plus(term.scaled(factor))
        return total.reshaped(total.mantissa[:, : outputs // groups])

    def run(x: BallArray) -> BallArray:
        z = x.mantissa if adjoint else unshuffled(x.mantissa, stride)
        # Run from a point: the error of x is stretched by the gain, and not by every term.
        parts = [group(x.point(part), index) for index, part in enumerate(np.split(z, groups, 1))]
        y = concatenated(parts, 1).with_error(gain * x.error)
        return plus_channels(y.reshaped(shuffled(y.mantissa, stride)) if adjoint else y, bias)

    return Layer(run, gain, norm)


def power_coefficients(coefficients: Sequence[float], norm_bound: float, series: str) -> list[fmpq]:
    """a_k with p(J) = sum_k a_k J^k, exactly, for floats c_k that stand for themselves.

    >>> power_coefficients([1.0, 1.0, 0.5], 2.0, "taylor")
    [1, 1, 1/2]
    >>> power_coefficients([1.0, 0.0, 1.0], 2.0, "chebyshev")
    [2, 0, 1/2]
    """
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
