"""Bessel functions of the first kind at a float, enclosed in exact arithmetic."""

import math
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from skewconv.rigor.directed import FRACTION_BITS, sqrt_up


class Enclosure(NamedTuple):
    """A real number known to lie within `radius` of `centre`."""

    centre: Fraction
    radius: Fraction


def _half(rho: float) -> tuple[int, int]:
    """rho / 2 as (numerator, denominator)."""
    numerator, denominator = rho.as_integer_ratio()
    return numerator, 2 * denominator


def _enclosed(numerator: int, denominator: int) -> tuple[Fraction, Fraction]:
    """Dyadic numbers of at least FRACTION_BITS bits below and above a fraction: short integers for long ones."""
    shift = max(0, FRACTION_BITS + denominator.bit_length() - abs(numerator).bit_length())
    quotient, rest = divmod(numerator << shift, denominator)
    return Fraction(quotient, 1 << shift), Fraction(quotient + (rest > 0), 1 << shift)


def bessel_majorant_up(rho: float, k: int) -> Fraction:
    """(rho / 2)^k / k!, rounded up: it bounds |J_k(rho)|."""
    numerator, denominator = _half(rho)
    return _enclosed(numerator**k, denominator**k * math.factorial(k))[1]


@lru_cache(maxsize=8192)
def bessel(rho: float, k: int) -> Enclosure:
    """J_k(rho) = x^k / k! * sum_m (-x^2)^m k! / (m! (m + k)!) with x = rho / 2, enclosed.

    >>> float(bessel(2.0, 1).centre), bessel(2.0, 1).radius < 1e-30
    (0.5767248077568734, True)
    """
    if rho == 0:
        return Enclosure(Fraction(k == 0), Fraction(0))
    numerator, denominator = _half(rho)
    # Terms grow to about e^rho and the sum falls to about e^(-rho / 2): 1.5 log2(e) < 2.5 bits per unit of rho.
    point = FRACTION_BITS + 64 + math.ceil(2.5 * rho)
    term = total = 1 << point
    error = total_error = 0  # in units of the last place
    m = 0
    while term or 2 * numerator**2 > denominator**2 * (m + 1) * (m + 1 + k):
        m += 1
        top, bottom = numerator**2, denominator**2 * m * (m + k)
        term = term * top // bottom
        error = error * top // bottom + 2  # the old error carried on, this floor, and the floor just taken
        total += -term if m % 2 else term
        total_error += error
    # The last true term is at most `error`, and each one after it at most half the one before.
    total_error += error
    scale = denominator**k * math.factorial(k) << point
    low, _ = _enclosed(numerator**k * (total - total_error), scale)
    _, high = _enclosed(numerator**k * (total + total_error), scale)
    return Enclosure((low + high) / 2, (high - low) / 2)


def bessel_tail_up(rho: float, degree: int) -> Fraction:
    """2 sum_{k > degree} |J_k(rho)| over even and over odd k, from above, and the root of the sum of their squares.

    In exp(i t) = sum_k c_k i^k T_k(t / rho) the terms with even k are real and those with odd k imaginary, so that the
    two sums bound the two parts of a tail. Terms one by one, then |J_k| <= (rho/2)^k / k! to the end.
    """
    if rho == 0:
        return Fraction(0)
    sums, k = [Fraction(0), Fraction(0)], degree + 1
    while True:
        centre, radius = bessel(rho, k)
        sums[k % 2] += abs(centre) + radius
        k += 1
        # From k >= rho on, each majorant is at most half the one before: together they are at most twice the first.
        if k >= rho and (rest := 2 * bessel_majorant_up(rho, k)) * 2**60 <= max(sums):
            return Fraction(sqrt_up(sum(((2 * (part + rest)) ** 2 for part in sums), Fraction(0))))
