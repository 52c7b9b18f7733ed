"""How well a layer's polynomial stands for the exponential: by a degree, or by an error."""

from dataclasses import dataclass

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
        if self.degree is not None:
            return polynomial(norm_bound, self.degree, self.series)
        if self.non_expansive:
            return non_expansive_polynomial(norm_bound, self.tol, self.series)
        return polynomial(norm_bound, degree_for(norm_bound, self.tol, self.series), self.series)

    # What torch.compiler.assume_constant_result does, without importing the compiler along with every layer.
    polynomial._dynamo_marked_constant = True  # type: ignore[attr-defined]
