"""Norms rounded up: never below the exact one, at no scale zero or infinite without need."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skewconv.rigor import vector_norm_up

FLOATS = st.floats(allow_nan=False, allow_infinity=False)


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
