"""How well a layer's polynomial stands for the exponential: by a degree, or by an error; and how it is inverted."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from skewconv.ops.polynomials import Polynomial, non_expansive_polynomial, polynomial, training_polynomial

# Each takes as long as a forward pass and a backward one.
MOST_ITERATIONS = 100


class Iteration(NamedTuple):
    """x_0 = factor S^H y, and so many steps x + factor S^H (y - S x)."""

    factor: float
    steps: int


@dataclass(frozen=True)
class Accuracy:
    """Which polynomial stands for the exponential: a degree, or the largest error allowed.

    Attributes:
        series: the name of its family.
        degree: the number of products, or None: the fewest that tol allows.
        tol: of evaluation, the largest error; of training, the largest root-mean-square error on the spectrum that
            filters have (see :func:`skewconv.ops.polynomials.training_polynomial`).
        non_expansive: that of evaluation, which never exceeds one.
    """

    series: str
    degree: int | None
    tol: float
    non_expansive: bool

    def polynomial(self, norm_bound: float) -> Polynomial:
        """The polynomial for filters of at most this norm."""
        return _polynomial(self, norm_bound)

    def iteration(self, norm_bound: float, tol: float) -> "Iteration | None":
        """How the polynomial is inverted for filters of at most this norm; None where it cannot be."""
        return iteration_for(*self.polynomial(norm_bound).gain, tol)

    # What torch.compiler.assume_constant_result does, without importing the compiler along with every layer.
    polynomial._dynamo_marked_constant = True  # type: ignore[attr-defined]
    iteration._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache(maxsize=1024)
def _polynomial(accuracy: Accuracy, norm_bound: float) -> Polynomial:
    if accuracy.degree is not None:
        return polynomial(norm_bound, accuracy.degree, accuracy.series)
    if accuracy.non_expansive:
        return non_expansive_polynomial(norm_bound, accuracy.tol, accuracy.series)
    return training_polynomial(norm_bound, accuracy.tol, accuracy.series)


def iteration_for(low: float, high: float, tol: float) -> Iteration | None:
    """The fewest steps k with q^(k + 1) <= tol; None where they are too many, or the map may be singular.

    >>> iteration_for(1.0, 1.0, 1e-6), iteration_for(0.9, 1.1, 1e-6).steps, iteration_for(0.0, 1.0, 1e-6)
    (Iteration(factor=1.0, steps=0), 8, None)
    """
    if not (low > 0 and math.isfinite(high)):
        return None
    rate = (high**2 - low**2) / (high**2 + low**2)
    steps = max(0, math.ceil(math.log(tol) / math.log(rate)) - 1) if rate > 0 else 0
    return Iteration(2 / (low**2 + high**2), steps) if steps <= MOST_ITERATIONS else None
