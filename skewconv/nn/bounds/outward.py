"""Floating-point arithmetic rounded up, from exact fractions."""

import math
from collections.abc import Iterable
from fractions import Fraction


def round_up(value: Fraction) -> float:
    """The least float64 >= value."""
    try:
        nearest = float(value)
    except OverflowError:
        return math.inf
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


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


def sqrt_up(value: Fraction) -> float:
    """A float64 >= the square root, within two units in the last place."""
    root = math.sqrt(round_up(value))
    return root if Fraction(root) ** 2 >= value else math.nextafter(root, math.inf)
