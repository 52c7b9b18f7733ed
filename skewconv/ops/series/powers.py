"""What all polynomials in powers of J share, whatever their coefficients are."""

import math
from collections.abc import Sequence
from fractions import Fraction

from skewconv.ops.series.abstract_series import Series, UnitBasis
from skewconv.ops.series.recurrence import Recurrence


class PowerSeries(Series):
    """b_k(J) = J^k."""

    # phi_k = z^k: an error of one product reaches phi_k without growing.
    unit_basis = UnitBasis(step=1.0, back=0.0, error_weight=float)

    def last_useful_degree(self, rho: float) -> int:
        """The largest that there is."""
        return self.max_degree

    def at_zero(self, coefficients: Sequence[float]) -> float:
        """c_0: the other powers vanish."""
        return coefficients[0]

    def basis_growth(self, rho: float) -> Fraction:
        """|J^k| <= rho^k."""
        return Fraction(rho)

    def in_powers(self, exact: Sequence[Fraction], rho: float) -> list[Fraction]:
        """J^k = rho^k z^k."""
        return [c * Fraction(rho) ** k for k, c in enumerate(exact)]

    def recurrence(self, coefficients: tuple[float, ...], rho: float) -> Recurrence:
        """u_k = J^k: nothing is added from before."""
        return Recurrence(coefficients, (0.0,) * max(0, len(coefficients) - 2))

    def in_unit_basis(self, coefficients: tuple[float, ...], rho: float) -> list[float]:
        """c_k rho^k."""
        return [c * math.prod([rho] * k) for k, c in enumerate(coefficients)]
