"""Published numbers recomputed: the errors at rho = 2.1 and pi, and the norms up to which Taylor is non-expansive."""

import math

import numpy as np
import pytest

from skewconv.ops.polynomials import Polynomial, gain, polynomial, truncation_error
from tests.ops.test_polynomials import evaluate


def measured_error(p: Polynomial) -> float:
    """max |exp(i t) - p(i t)| on a dense grid that holds the ends."""
    s = np.linspace(-1, 1, 20001)
    return float(np.abs(np.exp(1j * p.norm_bound * s) - evaluate(p, s, exact=False)).max())


def two_digits(value: float) -> str:
    return f"{value:.1e}"


@pytest.mark.parametrize(
    ("norm_bound", "degree", "taylor", "theorem_3", "chebyshev"),
    [
        (2.1, 3, "7.6e-01", "8.1e-01", "8.4e-02"),
        (2.1, 4, "3.3e-01", "3.4e-01", "1.8e-02"),
        (2.1, 5, "1.2e-01", "1.2e-01", "3.2e-03"),
        (2.1, 8, "2.1e-03", "2.2e-03", "7.7e-06"),
        (2.1, 11, "1.5e-05", "1.5e-05", "6.9e-09"),
        (math.pi, 5, "1.2e+00", "1.3e+00", "3.1e-02"),
        (math.pi, 11, "1.9e-03", "1.9e-03", "7.9e-07"),
    ],
)
def test_the_table_of_errors(norm_bound: float, degree: int, taylor: str, theorem_3: str, chebyshev: str) -> None:
    assert two_digits(measured_error(polynomial(norm_bound, degree, "taylor"))) == taylor
    assert two_digits(truncation_error(norm_bound, degree)) == theorem_3
    p = polynomial(norm_bound, degree, "chebyshev")
    assert two_digits(measured_error(p)) == chebyshev
    assert measured_error(p) <= p.truncation_error


def non_expansive_up_to(degree: int) -> float:
    """The largest norm bound at which the gain is proven to be at most 1, by bisection: it is monotone in it."""
    low, high = 1.0, 4.0
    assert gain(low, degree, "taylor")[1] <= 1 < gain(high, degree, "taylor")[1]
    while high - low > 1e-5:
        middle = (low + high) / 2
        low, high = (middle, high) if gain(middle, degree, "taylor")[1] <= 1 else (low, middle)
    return low


@pytest.mark.parametrize(("degree", "norm_bound"), [(4, 2.828), (8, 3.395), (12, 3.379), (16, 3.325)])
def test_taylor_of_degree_divisible_by_four_is_non_expansive_up_to(degree: int, norm_bound: float) -> None:
    assert non_expansive_up_to(degree) == pytest.approx(norm_bound, abs=6e-4)
    assert non_expansive_up_to(degree - 1) == pytest.approx(1.7, abs=0.1)


@pytest.mark.parametrize("degree", [d for d in range(1, 17) if d % 4 in (1, 2)])
def test_taylor_of_all_other_degrees_is_expansive_everywhere(degree: int) -> None:
    assert all(gain(rho, degree, "taylor")[1] > 1 for rho in (1e-6, 1e-3, 0.1, 0.5, 1.0, 2.1, math.pi))
