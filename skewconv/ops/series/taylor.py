"""The paper's series: sum_k J^k / k!, with the error of Theorem 3; and what all polynomials in powers of J share."""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from skewconv.ops.recurrence import Recurrence
from skewconv.ops.series.abstract_series import Series, UnitBasis


class PowerSeries(Series):
    """b_k(J) = J^k."""

    # phi_k = z^k: an error of one product reaches phi_k without growing.
    unit_basis = UnitBasis(step=1.0, back=0.0, error_weight=float)

    def last_useful_degree(self, rho: float) -> int:
        return self.max_degree

    def at_zero(self, coefficients: Sequence[float]) -> float:
        return coefficients[0]

    def basis_growth(self, rho: float) -> Fraction:
        return Fraction(rho)

    def in_powers(self, exact: Sequence[Fraction], rho: float) -> list[Fraction]:
        return [c * Fraction(rho) ** k for k, c in enumerate(exact)]

    def recurrence(self, coefficients: tuple[float, ...], rho: float) -> Recurrence:
        return Recurrence(coefficients, (0.0,) * max(0, len(coefficients) - 2))

    def in_unit_basis(self, coefficients: tuple[float, ...], rho: float) -> list[float]:
        return [c * math.prod([rho] * k) for k, c in enumerate(coefficients)]


class Taylor(PowerSeries):
    """|exp(i t) - p(i t)| <= rho^(d+1) / (d+1)! (Theorem 3)."""

    name = "taylor"
    max_degree = 170  # 1 / 171! is subnormal
    advice = ', or use series="chebyshev"'

    def truncated(self, rho: float, degree: int) -> tuple[tuple[float, ...], Fraction]:
        return _inverse_factorials(degree), Fraction(rho) ** (degree + 1) / math.factorial(degree + 1)

    def exact_coefficients(self, coefficients: tuple[float, ...]) -> list[Fraction]:
        """The floats nearest to 1 / k! stand for 1 / k! itself; all others for themselves."""
        degree = len(coefficients) - 1
        if coefficients == _inverse_factorials(degree):
            return [Fraction(1, math.factorial(k)) for k in range(degree + 1)]
        return super().exact_coefficients(coefficients)


@lru_cache(maxsize=256)
def _inverse_factorials(degree: int) -> tuple[float, ...]:
    return tuple(1 / math.factorial(k) for k in range(degree + 1))


TAYLOR = Taylor()
