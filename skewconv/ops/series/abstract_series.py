"""What a series knows of itself: its coefficients and their error, its basis, its recurrence, how its errors grow."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from skewconv.ops.recurrence import Recurrence


@dataclass(frozen=True)
class UnitBasis:
    """phi_0 = 1, phi_1 = z, phi_{k+1} = step z phi_k + back phi_{k-1}: at most one for z in [-i, i]."""

    step: float  # a power of two, so that scaling by it is exact
    back: float  # zero or one
    error_weight: Callable[[int], float]  # k -> w_k: errors of at most e in every product reach phi_k as at most e w_k


class Series(ABC):
    """A family of polynomials p = sum_k c_k b_k(J) of every degree, near exp for ||J|| <= rho.

    A new one is a file with a subclass and an instance, and a line in ``SERIES``.
    """

    name: ClassVar[str]
    max_degree: ClassVar[int]
    unit_basis: ClassVar[UnitBasis]
    # What else to do where a tolerance cannot be met.
    advice: ClassVar[str] = ""

    @abstractmethod
    def truncated(self, rho: float, degree: int) -> tuple[tuple[float, ...], Fraction]:
        """The coefficients c_0 ... c_degree, and an upper bound on sup |exp(i t) - p(i t)| for |t| <= rho."""

    def exact_coefficients(self, coefficients: tuple[float, ...]) -> list[Fraction]:
        """What the coefficients stand for: themselves."""
        return [Fraction(c) for c in coefficients]

    @abstractmethod
    def last_useful_degree(self, rho: float) -> int:
        """The degree after which nothing is gained."""

    @abstractmethod
    def at_zero(self, coefficients: Sequence[float]) -> float:
        """p(0), rounded once."""

    @abstractmethod
    def basis_growth(self, rho: float) -> Fraction:
        """g with |b_k(i t)| <= g^k for |t| <= rho."""

    @abstractmethod
    def in_powers(self, exact: Sequence[Fraction], rho: float) -> list[Fraction]:
        """The coefficients of p in powers of z = J / rho."""

    @abstractmethod
    def recurrence(self, coefficients: tuple[float, ...], rho: float) -> Recurrence:
        """p(J) as a monic recurrence."""

    @abstractmethod
    def in_unit_basis(self, coefficients: tuple[float, ...], rho: float) -> list[float]:
        """The coefficients of p in the unit basis of z = J / rho."""
