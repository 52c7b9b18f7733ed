"""Exact polynomials and Bessel functions, against grids and against high precision."""

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp

from skewconv.rigor.exact_polynomials import bessel, bessel_majorant_up, maximum_up


@settings(max_examples=40)
@given(rho=st.floats(1e-300, 60), k=st.integers(0, 80))
def test_bessel_enclosures_hold_and_are_narrow(rho: float, k: int) -> None:
    with mp.workdps(150):
        truth = mp.besselj(k, mp.mpf(rho))
        centre, radius = bessel(rho, k)
        ratio = mp.mpf(centre.numerator) / centre.denominator
        assert abs(truth - ratio) <= mp.mpf(radius.numerator) / radius.denominator
        assert radius <= Fraction(1, 2**90) * bessel_majorant_up(rho, k)
        assert abs(centre) - radius <= bessel_majorant_up(rho, k)


@given(coefficients=st.lists(st.integers(-1000, 1000), min_size=1, max_size=9), denominator=st.integers(1, 999))
def test_maximum_up_bounds_any_polynomial_on_the_unit_interval(coefficients: list[int], denominator: int) -> None:
    bound = maximum_up(coefficients, denominator)
    values = [sum(c * Fraction(i, 64) ** j for j, c in enumerate(coefficients)) / denominator for i in range(65)]
    assert max(values) <= bound
    # On a grid of step 1/64 the maximum is missed by at most h^2/8 max |f''|.
    curvature = Fraction(sum(abs(c) * j * (j - 1) for j, c in enumerate(coefficients)), denominator)
    assert bound - max(values) <= curvature / 64**2 / 8 + Fraction(1, 2**40)
