"""Directed rounding: never on the wrong side, and by at most one float."""

import math
import sys
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from skewconv.rigor import (
    UNIT_ROUNDOFF,
    factor_down,
    factor_up,
    gamma,
    ldexp_up,
    power_of_two_scaled,
    product_up,
    round_down,
    round_up,
    sqrt_down,
    sqrt_up,
)


@given(value=st.fractions(min_value=0, max_value=10**6))
@example(value=Fraction(0))
@example(value=Fraction(1))
@example(value=Fraction(1, 10**400))
@example(value=1 + Fraction(1, 2**300))
@example(value=4 - Fraction(1, 2**300))
def test_directed_rounding_encloses_by_at_most_one_float(value: Fraction) -> None:
    low, high = round_down(value), round_up(value)
    assert Fraction(low) <= value <= Fraction(high)
    assert high in (low, math.nextafter(low, math.inf))
    low, high = sqrt_down(value), sqrt_up(value)
    assert Fraction(low) ** 2 <= value <= Fraction(high) ** 2
    assert high in (low, math.nextafter(low, math.inf))


@pytest.mark.parametrize("value", [Fraction(10) ** 400, Fraction(2) ** 1024 - 1])
def test_what_no_float_holds_is_enclosed_by_infinity_and_the_largest_float(value: Fraction) -> None:
    assert (round_up(value), round_up(-value)) == (math.inf, -sys.float_info.max)
    assert (round_down(value), round_down(-value)) == (sys.float_info.max, -math.inf)


@pytest.mark.parametrize("roundings", [2, 8, 32, 64, 128])
def test_factors_are_one_and_so_many_roundings_exactly(roundings: int) -> None:
    step = roundings * Fraction(UNIT_ROUNDOFF)
    assert (Fraction(factor_up(roundings)), Fraction(factor_down(roundings))) == (1 + step, 1 - step)


@given(st.lists(st.floats(0, 1e3), max_size=8))
def test_products_are_rounded_up(factors: list[float]) -> None:
    exact, product = math.prod(map(Fraction, factors), start=Fraction(1)), Fraction(product_up(factors))
    assert exact <= product <= exact * (1 + Fraction(len(factors), 2**50)) + Fraction(1, 10**300)


def test_scaling_by_powers_of_two_is_exact_and_rounds_upward_on_return():
    for value in (5e-324, 1e-310, 1.0, 0.75, 1e308):
        scaled, exponent = power_of_two_scaled(torch.tensor([value], dtype=torch.float64))
        assert 0.5 <= float(scaled) < 1
        assert math.ldexp(float(scaled), exponent) == value
    assert ldexp_up(0.75, -1074) == 5e-324
    assert ldexp_up(0.25, -1074) == 5e-324
    assert ldexp_up(1.0, 1024) == math.inf


def test_gamma_counts_complex_operations_as_dearer():
    assert 10 * 2.0**-53 < gamma(10) < gamma(10, is_complex=True)
