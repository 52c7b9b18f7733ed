"""The polynomial of a skew exponential: its coefficients as rational numbers, and its largest value on an interval."""

from collections.abc import Sequence
from typing import Any

from flint import acb, arb, fmpq, fmpq_poly

from skewconv.errors import ArgumentError


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
