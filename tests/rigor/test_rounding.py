"""Directed rounding and norms: never on the wrong side, and by at most a few floats."""

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
    ldexp_up,
    power_of_two_scaled,
    product_up,
    round_down,
    round_up,
    sqrt_down,
    sqrt_up,
    vector_norm_up,
)

FLOATS = st.floats(allow_nan=False, allow_infinity=False)


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
def test_factors_are_one_and_the_roundings_exactly(roundings: int) -> None:
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


@given(st.lists(FLOATS, min_size=1, max_size=6))
def test_a_norm_is_never_below_the_exact_one_and_close_to_it(entries: list[float]) -> None:
    found = float(vector_norm_up(torch.tensor(entries, dtype=torch.float64)))
    square = sum((Fraction(x) ** 2 for x in entries), Fraction(0))
    if found == float("inf"):
        assert square > Fraction(1.79e308) ** 2
        return
    assert Fraction(found) ** 2 >= square
    # Not far above: a few units in the last place, or one denormal.
    assert max(0.0, found * (1 - 1e-14) - 1e-323) <= float(max(map(abs, entries))) * len(entries) ** 0.5
    assert (found == 0) == (square == 0)


@pytest.mark.parametrize("exponent", [-1070, -560, -540, 0, 500, 1000])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_a_batch_of_scales_is_measured_row_by_row(exponent: int, dtype: torch.dtype) -> None:
    rows = torch.ones(3, 4, dtype=torch.float64)
    rows[1] *= 2.0**exponent
    rows[2] = 0
    found = vector_norm_up(rows.to(dtype))
    assert found.dtype == torch.float64
    assert 2.0 <= float(found[0]) < 2.0 + 1e-14
    assert 2.0 ** (exponent + 1) <= float(found[1]) <= 2.0 ** (exponent + 1) * (1 + 1e-14) + 5e-324
    assert float(found[2]) == 0


def test_what_is_not_finite_stays_so() -> None:
    rows = torch.tensor([[1.0, torch.inf], [torch.nan, 1.0], [1.0, 1.0]])
    first, second, third = vector_norm_up(rows).tolist()
    assert first == float("inf")
    assert second != second
    assert third >= 2**0.5
    assert vector_norm_up(torch.zeros(2, 0)).tolist() == [0.0, 0.0]
