"""Polynomials of exp on the imaginary axis: every bound against high precision, every refusal against its words."""

import copy
import dataclasses
import math
import pickle
from fractions import Fraction
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mpmath import mp

from skewconv.errors import ArgumentError
from skewconv.ops.polynomials import (
    Polynomial,
    degree_for,
    gain,
    non_expansive_polynomial,
    polynomial,
    truncation_error,
)
from skewconv.ops.series import SERIES

# The isometric polynomials converge to nothing: their own tests are in test_isometric.py.
CONVERGING = [name for name in SERIES if name != "isometric"]
each_series = pytest.mark.parametrize("series", SERIES)
each_converging_series = pytest.mark.parametrize("series", CONVERGING)
norms = st.floats(0, 2 * math.pi, allow_subnormal=False)


def evaluate(p: Polynomial, s: Any, *, exact: bool) -> Any:
    """p(i norm_bound s), from the definition of its basis: in mpmath if exact, on an array of s otherwise."""
    coefficients = [mp.mpf(c) for c in p.coefficients] if exact else list(p.coefficients)
    if exact and p.series == "taylor" and p.coefficients[0] == 1:
        coefficients = [1 / mp.factorial(k) for k in range(p.degree + 1)]
    z = (mp.mpc(0, 1) if exact else 1j) * s
    step, back = {"taylor": (p.norm_bound, 0), "isometric": (p.norm_bound, 0), "chebyshev": (2, 1)}[p.series]
    phi, previous, total = 0 * z + 1, -z, 0 * z
    for c in coefficients:
        total = total + c * phi
        phi, previous = step * z * phi + back * previous, phi
    return total


def true_gain(p: Polynomial) -> tuple[mpmath.mpf, mpmath.mpf]:
    """Attained values of |p| near its minimum and maximum: a dense grid in float64, then thirds in mpmath."""
    # Chebyshev points: the extrema of both families crowd towards the ends.
    grid = np.cos(np.linspace(math.pi / 2, 0, 4001))
    moduli = np.abs(evaluate(p, grid, exact=False))
    found = []
    for sign in (1, -1):
        at = int(np.argmin(sign * moduli))
        low, high = mp.mpf(grid[max(at - 1, 0)]), mp.mpf(grid[min(at + 1, 4000)])
        for _ in range(30):
            a, b = low + (high - low) / 3, high - (high - low) / 3
            if sign * abs(evaluate(p, a, exact=True)) < sign * abs(evaluate(p, b, exact=True)):
                high = b
            else:
                low = a
        candidates = (low, mp.mpf(grid[at]), mp.mpf(0), mp.mpf(1))
        found.append(sign * min(sign * abs(evaluate(p, s, exact=True)) for s in candidates))
    return found[0], found[1]


def assert_gain_holds(p: Polynomial) -> None:
    with mp.workdps(60 + round(p.norm_bound)):
        low, high = true_gain(p)
        slack = mp.mpf(10) ** -50  # of the arithmetic of this test
        assert p.gain[0] <= low + slack
        assert high <= p.gain[1] + slack
        assert low - p.gain[0] <= 1e-10 * max(low, 1e-3)
        assert p.gain[1] - high <= 1e-10 * high


@each_series
@pytest.mark.parametrize("degree", [0, 1, 2, 3, 4, 5, 8, 11, 13, 16])
@pytest.mark.parametrize("norm_bound", [0.25, 2.1, math.pi, 2 * math.pi, 20.0])
def test_gain_is_never_narrower_than_the_truth_and_tight(norm_bound: float, degree: int, series: str) -> None:
    assert_gain_holds(polynomial(norm_bound, min(degree, SERIES[series].max_degree), series))


@settings(max_examples=15)
@given(norm_bound=norms, degree=st.integers(0, 12), series=st.sampled_from(list(SERIES)))
def test_gain_holds_at_random_bounds_and_degrees(norm_bound: float, degree: int, series: str) -> None:
    p = polynomial(norm_bound, degree, series)
    assert_gain_holds(p)
    assert_gain_holds(p.non_expansive())


def test_taylor_of_degree_4_is_non_expansive_up_to_the_square_root_of_8() -> None:
    # |p(i t)|^2 = 1 - t^6/72 + t^8/576: at most 1 exactly while t^2 <= 8.
    below = math.sqrt(8) if Fraction(math.sqrt(8)) ** 2 <= 8 else math.nextafter(math.sqrt(8), 0)
    assert gain(below, 4, "taylor")[1] == 1.0
    assert polynomial(below, 4, "taylor").non_expansive() is polynomial(below, 4, "taylor")
    assert gain(math.nextafter(below, 3), 4, "taylor")[1] > 1.0


@given(norm_bound=norms, degree=st.integers(0, 12), series=st.sampled_from(list(SERIES)))
@example(norm_bound=2.1, degree=3, series="chebyshev")
def test_non_expansive_polynomials_are_non_expansive(norm_bound: float, degree: int, series: str) -> None:
    p = polynomial(norm_bound, degree, series)
    tamed = p.non_expansive()
    assert tamed.gain[1] <= 1.0
    assert tamed.gain[1] >= min(p.gain[1], 1 - 1e-12)
    assert (tamed.degree, tamed.series, tamed.norm_bound) == (p.degree, p.series, p.norm_bound)
    assert tamed.non_expansive() is tamed


@settings(max_examples=50)
@given(
    norm_bound=st.floats(0.01, 2 * math.pi),
    degree=st.integers(0, 12),
    fraction=st.floats(-1, 1),
    series=st.sampled_from(list(SERIES)),
)
def test_non_expansive_polynomials_state_their_new_error(
    norm_bound: float, degree: int, fraction: float, series: str
) -> None:
    tamed = polynomial(norm_bound, degree, series).non_expansive()
    with mp.workdps(60):
        for s in (mp.mpf(fraction), mp.mpf(1)):
            error = abs(mp.exp(mp.mpc(0, s * mp.mpf(norm_bound))) - evaluate(tamed, s, exact=True))
            assert error <= tamed.truncation_error


@each_converging_series
@pytest.mark.parametrize("norm_bound", [0.3, 2.1, math.pi, 6.0, 20.0])
@pytest.mark.parametrize("tol", [0.9, 1e-1, 1e-3, 1e-6, 1e-12])
def test_degree_for_is_the_smallest_degree(norm_bound: float, tol: float, series: str) -> None:
    degree = degree_for(norm_bound, tol, series)
    assert truncation_error(norm_bound, degree, series) <= tol
    assert all(truncation_error(norm_bound, lower, series) > tol for lower in range(degree))


@each_converging_series
@pytest.mark.parametrize("norm_bound", [0.3, 2.1, math.pi, 6.0])
@pytest.mark.parametrize("tol", [3.0, 1e-1, 1e-3, 1e-6, 1e-10])
def test_non_expansive_polynomial_has_the_smallest_degree(norm_bound: float, tol: float, series: str) -> None:
    p = non_expansive_polynomial(norm_bound, tol, series)
    assert p.gain[1] <= 1.0
    assert p.truncation_error <= tol
    lower = (polynomial(norm_bound, d, series).non_expansive() for d in range(p.degree))
    assert all(q.truncation_error > tol for q in lower)


@pytest.mark.parametrize("norm_bound", [1e-3, 0.5, 2.1, 2.404825557695773, math.pi, 6.0, 50.0, 200.0])
def test_chebyshev_coefficients_are_the_floats_nearest_to_bessel_functions(norm_bound: float) -> None:
    p = polynomial(norm_bound, 24, "chebyshev")
    with mp.workdps(120):
        for k, c in enumerate(p.coefficients):
            assert c == float((2 if k else 1) * mp.besselj(k, mp.mpf(norm_bound)))


@pytest.mark.parametrize("norm_bound", [0.01, 2.1, math.pi, 6.0, 50.0])
@pytest.mark.parametrize("degree", [0, 1, 5, 9, 30])
def test_chebyshev_error_is_the_bessel_tail_and_the_rounding(norm_bound: float, degree: int) -> None:
    stated = truncation_error(norm_bound, degree, "chebyshev")
    with mp.workdps(120):
        rho = mp.mpf(norm_bound)
        first = degree + 1
        # Terms of even k are real, those of odd k imaginary.
        parts = [2 * mp.fsum(abs(mp.besselj(k, rho)) for k in range(first + j, first + 150, 2)) for j in (0, 1)]
        tail = mp.sqrt(parts[0] ** 2 + parts[1] ** 2)
        coefficients = polynomial(norm_bound, degree, "chebyshev").coefficients
        rounding = mp.fsum(abs(c - (2 if k else 1) * mp.besselj(k, rho)) for k, c in enumerate(coefficients))
        assert tail + rounding <= stated <= (tail + rounding) * (1 + mp.mpf(2) ** -50)


@each_series
def test_a_norm_bound_of_zero_gives_the_identity(series: str) -> None:
    p = non_expansive_polynomial(0, 1e-300, series)
    assert (p.coefficients, p.truncation_error, p.gain) == ((1.0,), 0.0, (1.0, 1.0))
    assert polynomial(0.0, 5, series).gain == (1.0, 1.0)
    assert truncation_error(0.0, 5, series) == 0.0


@each_series
@pytest.mark.parametrize("norm_bound", [5e-324, 1e-200, 1e-8])
def test_tiny_norm_bounds_do_not_underflow(norm_bound: float, series: str) -> None:
    p = polynomial(norm_bound, 3, series)
    assert 0 < p.truncation_error < 1e-16
    assert p.non_expansive().gain[1] <= 1.0
    assert degree_for(norm_bound, 1e-16, series) <= 1


@each_series
def test_polynomials_are_cached_hashable_and_travel(series: str) -> None:
    p = polynomial(2.1, 5, series)
    assert polynomial(np.float64(2.1), 5, series) is p
    assert non_expansive_polynomial(2.1, 1e-3, series) is non_expansive_polynomial(2.1, 1e-3, series)
    assert len({p, dataclasses.replace(p), pickle.loads(pickle.dumps(p)), copy.deepcopy(p)}) == 1
    assert polynomial(np.float32(2.5), np.int64(3), series) is polynomial(2.5, 3, series)
    with pytest.raises(dataclasses.FrozenInstanceError):
        p.norm_bound = 3.0  # type: ignore[misc]


NO_FLOATS = [math.nan, "2", 1j, True, None]


@pytest.mark.parametrize(
    ("call", "values", "words"),
    [
        (lambda v: polynomial(1.0, 2, v), ["Taylor", "pade", "", None], 'one of "taylor", "chebyshev", "isometric"'),
        (lambda v: degree_for(1.0, 0.1, v), ["pade"], 'one of "taylor", "chebyshev", "isometric"'),
        (lambda v: gain(1.0, v, "taylor"), [-1, 2.0, True, "3", None, 10**6], "from 0 to 170 for taylor"),
        (lambda v: truncation_error(1.0, v, "chebyshev"), [True, 10**6], "from 0 to 2048 for chebyshev"),
        (
            lambda v: polynomial(v, 2, "isometric"),
            [-0.1, math.inf, 1001.0, Fraction(1, 3), 10**400, *NO_FLOATS],
            "norm_bound must be a float from 0 to 1000.* scale the filter down",
        ),
        (lambda v: degree_for(2.1, v, "taylor"), [0, -1e-3, *NO_FLOATS], "tol must be a float above 0"),
        (lambda v: non_expansive_polynomial(2.1, v, "chebyshev"), [0.0], "tol must be a float above 0"),
    ],
)
def test_what_is_no_series_degree_norm_or_tolerance_is_refused(call: Any, values: list[Any], words: str) -> None:
    polynomial(1.0, 1, "taylor")  # a cached 1 must not let True through
    for value in values:
        with pytest.raises(ArgumentError, match=words) as info:
            call(value)
        assert repr(value) in str(info.value)


def smallest_attainable(call: Any, norm_bound: float, tol: float, series: str) -> float:
    with pytest.raises(ArgumentError, match="smallest attainable is") as info:
        call(norm_bound, tol, series)
    assert repr(tol) in str(info.value)
    return float(str(info.value).split("smallest attainable is ")[1].split(";")[0])


@pytest.mark.parametrize(("norm_bound", "tol", "series"), [(2.1, 1e-18, "chebyshev"), (60.0, 1e-6, "taylor")])
def test_an_unattainable_tolerance_is_refused_with_the_smallest_attainable(
    norm_bound: float, tol: float, series: str
) -> None:
    best = smallest_attainable(degree_for, norm_bound, tol, series)
    assert best > tol
    assert truncation_error(norm_bound, degree_for(norm_bound, best, series), series) <= best


@pytest.mark.parametrize(("norm_bound", "tol", "series"), [(20.0, 1e-12, "taylor"), (3.3, 1.41e-16, "chebyshev")])
def test_an_unattainable_tolerance_after_division_is_refused_too(norm_bound: float, tol: float, series: str) -> None:
    # The Taylor terms of norm 20 reach 4e7: dividing rounds them to floats that no longer cancel to 1e-12.
    # Chebyshev at 3.3 exceeds 1 by one unit in the last place, and losing it costs more than the rounding it has.
    assert degree_for(norm_bound, tol, series) > 0
    best = smallest_attainable(non_expansive_polynomial, norm_bound, tol, series)
    assert non_expansive_polynomial(norm_bound, best, series).truncation_error <= best


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"coefficients": (1.0, math.nan)}, "coefficients must be finite"),
        ({"coefficients": ()}, "degree must be an integer"),
        ({"truncation_error": -1.0}, "truncation_error must be finite"),
        ({"truncation_error": math.nan}, "truncation_error must be finite"),
        ({"coefficients": (0.5, 1.0, 0.5)}, "p\\(0\\) = 0.5"),
        ({"norm_bound": -2.0}, "norm_bound must be"),
        ({"series": "fourier"}, "series must be"),
    ],
)
def test_a_polynomial_checks_its_own_algebra(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        dataclasses.replace(polynomial(1.0, 2, "taylor"), **change)


# Published numbers recomputed: the errors at rho = 2.1 and pi, and the norms up to which Taylor is non-expansive.


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
