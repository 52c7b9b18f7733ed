"""The paper's series: sum_k J^k / k!, with the error of Theorem 3."""

import math
from fractions import Fraction
from functools import lru_cache

from skewconv.ops.series.powers import PowerSeries


class Taylor(PowerSeries):
    """|exp(i t) - p(i t)| <= rho^(d+1) / (d+1)! (Theorem 3)."""

    name = "taylor"
    max_degree = 170  # 1 / 171! is subnormal
    advice = ', or use series="chebyshev"'

    def truncated(self, rho: float, degree: int) -> tuple[tuple[float, ...], Fraction]:
        """1 / k! to the nearest float."""
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
