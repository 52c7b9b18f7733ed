"""The Chebyshev series: J_0(rho) + 2 sum_k J_k(rho) phi_k(J / rho) with Bessel functions J_k."""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from skewconv.ops.recurrence import Recurrence
from skewconv.ops.series.abstract_series import Series, UnitBasis
from skewconv.rigor import bessel, bessel_tail_up, chebyshev_to_powers


class Chebyshev(Series):
    """phi_0 = 1, phi_1 = z, phi_{k+1} = 2 z phi_k + phi_{k-1}, with an error below 2 sum_{k > degree} |J_k(rho)|.

    The terms with even k are real and those with odd k imaginary: the error is the root of the squares of the two sums,
    and includes the rounding of the coefficients to floats. Needs little more than rho terms.
    """

    name = "chebyshev"
    max_degree = 2048  # never met in earnest
    # An error made in phi_j reaches phi_k through the polynomial U_{k-j} of the second kind, |U_n| <= n + 1: in all
    # 1 + 2 + ... + k.
    unit_basis = UnitBasis(step=2.0, back=1.0, error_weight=lambda k: k * (k + 1) / 2)

    def truncated(self, rho: float, degree: int) -> tuple[tuple[float, ...], Fraction]:
        terms = [_coefficient(rho, k) for k in range(degree + 1)]
        error = bessel_tail_up(rho, degree) + sum(rounding for _, rounding in terms)
        return tuple(coefficient for coefficient, _ in terms), error

    def last_useful_degree(self, rho: float) -> int:
        """There the Bessel tail is below 2^-300, far under any rounding."""
        return math.ceil(1.5 * rho) + 64

    def at_zero(self, coefficients: Sequence[float]) -> float:
        return math.fsum(coefficients[::2])

    def basis_growth(self, rho: float) -> Fraction:
        return Fraction(1)

    def in_powers(self, exact: Sequence[Fraction], rho: float) -> list[Fraction]:
        return chebyshev_to_powers(exact)

    def recurrence(self, coefficients: tuple[float, ...], rho: float) -> Recurrence:
        """phi_k = s_k u_k with s_k = 2^(k-1) / rho^k, b_1 = rho^2 / 2 and b_k = rho^2 / 4 after it."""
        scaled, degree = list(coefficients), len(coefficients) - 1
        for k in range(1, degree + 1):
            # One factor at a time because s_k alone may overflow.
            scaled[k] /= 2
            for _ in range(k):
                scaled[k] *= 2 / rho
        return Recurrence(tuple(scaled), tuple(rho * rho / (2 if k == 1 else 4) for k in range(1, degree)))

    def in_unit_basis(self, coefficients: tuple[float, ...], rho: float) -> list[float]:
        return list(coefficients)


@lru_cache(maxsize=8192)
def _coefficient(rho: float, k: int) -> tuple[float, Fraction]:
    """The float nearest to J_0(rho) or 2 J_k(rho), and a bound on the distance between the two."""
    factor = 2 if k else 1
    centre, radius = bessel(rho, k)
    coefficient = float(factor * centre)
    return coefficient, abs(Fraction(coefficient) - factor * centre) + factor * radius


CHEBYSHEV = Chebyshev()
