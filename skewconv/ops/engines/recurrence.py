"""A polynomial of J as one monic recurrence.

u_0 = x, u_{k+1} = J u_k + b_k u_{k-1}, p(J) x = sum_k a_k u_k. Taylor has b = 0; Chebyshev has b_1 = rho^2 / 2 and
b_k = rho^2 / 4 after it. Monic, because then a step is one product and one addition.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import zip_longest

import torch

from skewconv.ops.series import Polynomial


@dataclass(frozen=True)
class Recurrence:
    """The monic three-term recurrence of a polynomial: ``coefficients`` a_0..a_n, ``backs`` b_1..b_{n-1}."""

    coefficients: tuple[float, ...]
    backs: tuple[float, ...]

    @property
    def degree(self) -> int:
        """Number of products with J."""
        return len(self.coefficients) - 1

    def adjoint(self) -> "Recurrence":
        """The recurrence of p(-J) = p(J)^H."""
        return Recurrence(tuple(-a if k % 2 else a for k, a in enumerate(self.coefficients)), self.backs)


def recurrence(polynomial: Polynomial) -> Recurrence:
    """The recurrence of p(J)."""
    # Not polynomial.degree: the compiler sees fields of a frozen value, but not its properties.
    degree, rho = len(polynomial.coefficients) - 1, polynomial.norm_bound
    if polynomial.series == "taylor":
        return Recurrence(polynomial.coefficients, (0.0,) * max(0, degree - 1))
    coefficients = list(polynomial.coefficients)
    for k in range(1, degree + 1):
        # phi_k = s_k u_k with s_k = 2^(k-1) / rho^k, one factor at a time because s_k alone may overflow.
        coefficients[k] /= 2
        for _ in range(k):
            coefficients[k] *= 2 / rho
    return Recurrence(tuple(coefficients), tuple(rho * rho / (2 if k == 1 else 4) for k in range(1, degree)))


def reversible_recurrence(polynomial: Polynomial) -> Recurrence:
    """The same polynomial with every b_k > 0, so that the recurrence can also be run backwards."""
    steps, rho = recurrence(polynomial), Fraction(polynomial.norm_bound)
    if polynomial.series == "chebyshev":
        return steps
    backs = [rho**2 / (2 if k == 1 else 4) for k in range(1, steps.degree)]
    basis = [[Fraction(1)], [Fraction(0), Fraction(1)]]
    for back in backs:
        basis.append(
            [a + back * b for a, b in zip_longest([Fraction(0), *basis[-1]], basis[-2], fillvalue=Fraction(0))]
        )
    left = [Fraction(a) for a in steps.coefficients]
    for k in range(steps.degree, -1, -1):
        left[:k] = [a - left[k] * u for a, u in zip(left, basis[k][:k], strict=False)]
    return Recurrence(tuple(map(float, left)), tuple(map(float, backs)))


_RECURRENCE, _REVERSIBLE = lru_cache(maxsize=1024)(recurrence), lru_cache(maxsize=1024)(reversible_recurrence)


def steps_of(polynomial: Polynomial, *, inverse: bool, recompute: bool) -> Recurrence:
    """The recurrence of p(J), or of p(-J); one that can be run backwards if terms are to be recomputed."""
    if torch.compiler.is_compiling():
        # The compiler looks through a cache and warns of it; and it has its own ways to save memory.
        steps = recurrence(polynomial)
    else:
        steps = _REVERSIBLE(polynomial) if recompute else _RECURRENCE(polynomial)
    return steps.adjoint() if inverse else steps
