"""A polynomial of J as one monic recurrence.

u_0 = x, u_{k+1} = J u_k + b_k u_{k-1}, p(J) x = sum_k a_k u_k. Monic, because then a step is one product and one
addition.
"""

from dataclasses import dataclass
from fractions import Fraction
from itertools import zip_longest


@dataclass(frozen=True)
class Recurrence:
    """The monic three-term recurrence of a polynomial: ``coefficients`` a_0..a_n, ``backs`` b_1..b_{n-1}.

    >>> Recurrence((1.0, 2.0, 3.0), (0.0,)).adjoint()
    Recurrence(coefficients=(1.0, -2.0, 3.0), backs=(0.0,))
    """

    coefficients: tuple[float, ...]
    backs: tuple[float, ...]

    @property
    def degree(self) -> int:
        """Number of products with J."""
        return len(self.coefficients) - 1

    def adjoint(self) -> "Recurrence":
        """The recurrence of p(-J) = p(J)^H."""
        return Recurrence(tuple(-a if k % 2 else a for k, a in enumerate(self.coefficients)), self.backs)

    def reversible(self, rho: float) -> "Recurrence":
        """The same polynomial with every b_k > 0, so that the recurrence can also be run backwards.

        Where some b_k is zero, the basis becomes that of b_1 = rho^2 / 2 and b_k = rho^2 / 4: multiples of Chebyshev
        polynomials on [-i rho, i rho].

        >>> Recurrence((1.0, 1.0, 0.5), (0.0,)).reversible(2.0)  # u_2 = J^2 becomes u_2 = J^2 + 2
        Recurrence(coefficients=(0.0, 1.0, 0.5), backs=(2.0,))
        """
        if all(back > 0 for back in self.backs):
            return self
        backs = [Fraction(rho) ** 2 / (2 if k == 1 else 4) for k in range(1, self.degree)]
        old, new = _in_powers([Fraction(back) for back in self.backs]), _in_powers(backs)
        left = [Fraction(0)] * (self.degree + 1)
        for a, powers in zip(self.coefficients, old, strict=True):
            left[: len(powers)] = [c + Fraction(a) * u for c, u in zip(left, powers, strict=False)]
        for k in range(self.degree, -1, -1):
            left[:k] = [a - left[k] * u for a, u in zip(left, new[k][:k], strict=False)]
        return Recurrence(tuple(map(float, left)), tuple(map(float, backs)))


def _in_powers(backs: list[Fraction]) -> list[list[Fraction]]:
    """u_0, u_1, ... as coefficients of powers of J."""
    basis = [[Fraction(1)], [Fraction(0), Fraction(1)]]
    for back in backs:
        basis.append(
            [a + back * b for a, b in zip_longest([Fraction(0), *basis[-1]], basis[-2], fillvalue=Fraction(0))]
        )
    return basis
