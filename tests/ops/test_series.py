"""Every series in the table: its recurrence, its bases and its bounds are those of one and the same polynomial."""

import math
from fractions import Fraction
from typing import get_args, get_type_hints

import numpy as np
import pytest

from skewconv.config import ModelConfig
from skewconv.ops.polynomials import Polynomial, polynomial
from skewconv.ops.recurrence import Recurrence
from skewconv.ops.series import DEFAULT_SERIES, SERIES, TRAINING_SERIES
from tests.ops.test_polynomials import evaluate

POINTS = np.linspace(-1, 1, 41)

each = pytest.mark.parametrize("series", SERIES)
each_degree = pytest.mark.parametrize("degree", [0, 1, 2, 3, 8, 12])


def by_recurrence(steps: Recurrence, j: np.ndarray) -> np.ndarray:
    """sum_k a_k u_k for numbers j in the place of J."""
    before, now = np.zeros_like(j), np.ones_like(j)
    total = steps.coefficients[0] * now
    for k, a in enumerate(steps.coefficients[1:]):
        before, now = now, j * now + (steps.backs[k - 1] * before if k else 0)
        total = total + a * now
    return total


def unit_basis(p: Polynomial) -> list[np.ndarray]:
    basis, z = SERIES[p.series].unit_basis, 1j * POINTS
    values = [np.ones_like(z), z]
    while len(values) <= p.degree:
        values.append(basis.step * z * values[-1] + basis.back * values[-2])
    return values[: p.degree + 1]


@each
@each_degree
def test_the_recurrence_is_the_polynomial_forwards_and_backwards(series: str, degree: int) -> None:
    p = polynomial(2.1, degree, series)
    expected, steps = evaluate(p, POINTS, exact=False), SERIES[series].recurrence(p.coefficients, p.norm_bound)
    np.testing.assert_allclose(by_recurrence(steps, 2.1j * POINTS), expected, atol=1e-13)
    reversible = steps.reversible(p.norm_bound)
    np.testing.assert_allclose(by_recurrence(reversible, 2.1j * POINTS), expected, atol=1e-13)
    assert all(back > 0 for back in reversible.backs)
    np.testing.assert_allclose(by_recurrence(steps.adjoint(), -2.1j * POINTS), expected, atol=1e-13)


@each
@each_degree
def test_the_unit_basis_gives_the_polynomial_and_stays_below_one(series: str, degree: int) -> None:
    p = polynomial(2.1, degree, series)
    basis, coefficients = unit_basis(p), SERIES[series].in_unit_basis(p.coefficients, p.norm_bound)
    total = sum(c * phi for c, phi in zip(coefficients, basis, strict=True))
    np.testing.assert_allclose(total, evaluate(p, POINTS, exact=False), atol=1e-13)
    assert max(float(np.abs(phi).max()) for phi in basis) <= 1 + 1e-12
    step = SERIES[series].unit_basis.step
    assert math.frexp(step)[0] == 0.5  # scaling by a power of two is exact


@each
@each_degree
def test_an_error_in_every_product_grows_by_no_more_than_its_weight(series: str, degree: int) -> None:
    basis = SERIES[series].unit_basis
    # At the worst points, the ends of the interval, errors of one and the same size with the worst signs.
    for z in (1j, -1j, 0.5j, 0):
        grown = [0j, 1 + 0j]
        while len(grown) <= degree + 1:
            grown.append(basis.step * z * grown[-1] + basis.back * grown[-2])
        assert sum(map(abs, grown[1 : degree + 1])) <= basis.error_weight(degree) + 1e-12


@each
@each_degree
def test_powers_of_z_give_the_polynomial_and_its_value_at_zero(series: str, degree: int) -> None:
    p, value = polynomial(2.1, degree, series), SERIES[series]
    powers = value.in_powers(value.exact_coefficients(p.coefficients), p.norm_bound)
    total = sum(float(c) * (1j * POINTS) ** k for k, c in enumerate(powers))
    np.testing.assert_allclose(total, evaluate(p, POINTS, exact=False), atol=1e-13)
    assert value.at_zero(p.coefficients) == pytest.approx(float(powers[0]), abs=1e-15)


@each
@pytest.mark.parametrize("norm_bound", [0.5, 2.1, 7.0])
def test_the_growth_bounds_the_basis(series: str, norm_bound: float) -> None:
    value = SERIES[series]
    for k in range(6):
        powers = value.in_powers([Fraction(i == k) for i in range(k + 1)], norm_bound)
        largest = np.abs(sum(float(c) * (1j * POINTS) ** i for i, c in enumerate(powers))).max()
        assert largest <= float(value.basis_growth(norm_bound)) ** k * (1 + 1e-12)


def test_names_are_keys_and_every_list_of_names_is_the_table() -> None:
    assert {name: value.name for name, value in SERIES.items()} == {name: name for name in SERIES}
    hints = get_type_hints(ModelConfig)
    assert {*get_args(hints["series"]), TRAINING_SERIES} == set(SERIES)
    assert {*get_args(get_args(hints["train_series"])[0])} == set(SERIES)
    assert DEFAULT_SERIES in SERIES
