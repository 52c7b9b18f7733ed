"""How well a layer's polynomial stands for the exponential: by a degree, or by an error."""

from dataclasses import dataclass
from functools import lru_cache

from skewconv.ops.polynomials import Polynomial, degree_for, non_expansive_polynomial, polynomial


@dataclass(frozen=True)
class Accuracy:
    """Which polynomial stands for the exponential: a degree, or the largest error allowed."""

    series: str
    degree: int | None
    tol: float
    non_expansive: bool

    def polynomial(self, norm_bound: float) -> Polynomial:
        """The polynomial for filters of at most this norm."""
        return _polynomial(self, norm_bound)

    # What torch.compiler.assume_constant_result does, without importing the compiler along with every layer.
    polynomial._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache(maxsize=1024)
def _polynomial(accuracy: Accuracy, norm_bound: float) -> Polynomial:
    if accuracy.degree is not None:
        return polynomial(norm_bound, accuracy.degree, accuracy.series)
    if accuracy.non_expansive:
        return non_expansive_polynomial(norm_bound, accuracy.tol, accuracy.series)
    return polynomial(norm_bound, degree_for(norm_bound, accuracy.tol, accuracy.series), accuracy.series)
