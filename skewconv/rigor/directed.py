"""Directed rounding: what ends in ``_up`` is never below the exact value, what ends in ``_down`` never above it."""

import math
import sys
from collections.abc import Iterable
from fractions import Fraction

# One float64 operation errs by at most this share of its result.
UNIT_ROUNDOFF = 2.0**-53
# Fixed-point numbers carry so many bits after the point: far more than a float64 has.
FRACTION_BITS = 128


def factor_up(roundings: int) -> float:
    """1 + n u, exactly: it lifts a product or sum of non-negative floats above its exact value.

    A value that was rounded m times, the product with this factor included, is covered by n = 2 m.

    >>> factor_up(2) == 1 + 2**-52
    True

    Args:
        roundings: n, even, so that the factor is a float64 itself.
    """
    return 1 + roundings * UNIT_ROUNDOFF


def factor_down(roundings: int) -> float:
    """1 - n u, exactly: it lowers a product or sum of non-negative floats below its exact value."""
    return 1 - roundings * UNIT_ROUNDOFF


# For a handful of scalar operations on non-negative numbers.
FEW_ROUNDINGS_UP = factor_up(32)
# For sums and norms of up to eight million, and of up to eight billion, non-negative numbers, added in any order.
MILLIONS_UP, MILLIONS_DOWN = 1 + 1e-9, 1 - 1e-9
BILLIONS_UP = 1 + 1e-6
# For what is itself a bound of rounding errors: two digits of it are enough, and terms of second order are far below.
ERROR_UP = 1.01


def round_up(value: Fraction) -> float:
    """The least float64 >= value, infinity included.

    >>> round_up(Fraction(1)), round_up(Fraction(1, 10)) - 0.1, round_up(Fraction(10) ** 400)
    (1.0, 0.0, inf)
    """
    try:
        nearest = float(value)
    except OverflowError:
        return math.inf if value > 0 else -sys.float_info.max
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def round_down(value: Fraction) -> float:
    """The largest float64 <= value, minus infinity included."""
    return -round_up(-value)


def sqrt_up(value: Fraction) -> float:
    """The least float64 >= sqrt(value).

    >>> sqrt_up(Fraction(1, 4)), Fraction(sqrt_up(Fraction(2))) ** 2 > 2
    (0.5, True)
    """
    root, bits, is_exact = _integer_root(value)
    return round_up(Fraction(root if is_exact else root + 1, 2**bits))


def sqrt_down(value: Fraction) -> float:
    """The largest float64 <= sqrt(value)."""
    root, bits, _ = _integer_root(value)
    return round_down(Fraction(root, 2**bits))


def _integer_root(value: Fraction) -> tuple[int, int, bool]:
    """(r, b, whether r is exact) with r = floor(sqrt(value) 2^b), of at least FRACTION_BITS bits.

    With so many bits, rounding the integer root to a float loses nothing that matters.
    """
    bits = FRACTION_BITS + max(0, value.denominator.bit_length() - value.numerator.bit_length())
    scaled = value * 4**bits
    root = math.isqrt(math.floor(scaled))
    return root, bits, root * root == scaled


def product_up(factors: Iterable[float]) -> float:
    """The product of non-negative bounds, each step rounded up; ones stay exactly one.

    >>> product_up([1.0, 1.0]), product_up([0.1] * 3) > 0.1**3
    (1.0, True)
    """
    product = 1.0
    for factor in factors:
        exact = math.isfinite(product) and math.isfinite(factor)
        product = round_up(Fraction(product) * Fraction(factor)) if exact else product * factor
    return product


def ldexp_up(bound: float, exponent: int) -> float:
    """bound * 2^exponent rounded up: infinity on overflow, never below the truth among the denormals.

    >>> ldexp_up(0.75, 1), ldexp_up(0.25, -1074)
    (1.5, 5e-324)
    """
    try:
        value = math.ldexp(bound, exponent)
    except OverflowError:
        return math.inf
    return value if math.ldexp(value, -exponent) >= bound else math.nextafter(value, math.inf)
