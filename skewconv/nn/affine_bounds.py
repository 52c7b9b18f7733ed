"""What is proven of a map as a function of the norm of its input: its size and its rounding error, rounded up."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from skewconv.rigor import UNIT_ROUNDOFF, factor_up, gamma

_SUM_UP = factor_up(64)
#: Nothing overflows while results are below: what a layer adds up on the way there is at most a million times as large.
LARGEST = 2.0**1000


def _product_up(a: float, b: float) -> float:
    """a b for non-negative bounds, rounded up, with room for one more rounding; zero only where a or b is zero."""
    product = a * b * _SUM_UP
    # Near the denormals a product errs by more than a share of itself.
    return math.nextafter(product, math.inf) if product < 2.0**-1000 and a > 0 and b > 0 else product


class AffineBound(NamedTuple):
    """The affine bound n -> slope n + constant of the norm n of an input, both non-negative."""

    slope: float
    constant: float

    def plus(self, other: "AffineBound") -> "AffineBound":
        return AffineBound((self.slope + other.slope) * _SUM_UP, (self.constant + other.constant) * _SUM_UP)

    def times(self, factor: float) -> "AffineBound":
        return AffineBound(_product_up(self.slope, factor), _product_up(self.constant, factor))

    def after(self, inner: "AffineBound") -> "AffineBound":
        constant = (_product_up(self.slope, inner.constant) + self.constant) * _SUM_UP
        return AffineBound(_product_up(self.slope, inner.slope), constant)

    def at(self, norm: float) -> float:
        return (_product_up(self.slope, norm) + self.constant) * _SUM_UP

    def stays_below(self, limit: float) -> float:
        """The largest norm at which the value is at most this, rounded down; -1 if there is none."""
        if not (self.slope >= 0 and self.constant * _SUM_UP <= limit / _SUM_UP):
            return -1.0
        room = limit / _SUM_UP - self.constant * _SUM_UP
        return math.inf if self.slope == 0 else room / self.slope / _SUM_UP**2


ZERO = AffineBound(0.0, 0.0)
# Products that underflow lose less than 2^-1074 each; no layer has 2^100 of them.
UNDERFLOW = AffineBound(0.0, 2.0**-970)


@dataclass(frozen=True)
class Bounds:
    """What is proven of a map f and of a program that computes it.

    f has the Lipschitz constant ``lipschitz``, ||f(x)|| <= norm(||x||) and ||computed - f(x)|| <= error(||x||), each
    row of a batch; no intermediate value overflows for ||x|| <= ``max_input_norm``.
    """

    lipschitz: float
    norm: AffineBound
    error: AffineBound = ZERO
    max_input_norm: float = LARGEST

    def __post_init__(self) -> None:
        most = min(self.max_input_norm, self.norm.plus(self.error).stays_below(LARGEST))
        object.__setattr__(self, "max_input_norm", most)

    def then(self, other: "Bounds") -> "Bounds":
        """The other after this one: its own error on what was computed, and its stretching of the error made so far."""
        met = self.norm.plus(self.error)
        return Bounds(
            _product_up(self.lipschitz, other.lipschitz),
            other.norm.after(self.norm),
            other.error.after(met).plus(self.error.times(other.lipschitz)),
            min(self.max_input_norm, met.stays_below(other.max_input_norm)),
        )

    def plus(self, other: "Bounds") -> "Bounds":
        """The sum of two maps of one input, before it is rounded."""
        return Bounds(
            (self.lipschitz + other.lipschitz) * _SUM_UP,
            self.norm.plus(other.norm),
            self.error.plus(other.error),
            min(self.max_input_norm, other.max_input_norm),
        )

    def scale(self, factor: float) -> "Bounds":
        """A linear map of at most this norm after it, before it is rounded."""
        return replace(
            self,
            lipschitz=_product_up(self.lipschitz, factor),
            norm=self.norm.times(factor),
            error=self.error.times(factor),
        )

    def shifted(self, size: float) -> "Bounds":
        """A constant of this norm added, before the sum is rounded."""
        return replace(self, norm=self.norm.plus(AffineBound(0.0, size)))

    def rounded(self, operations: int = 1) -> "Bounds":
        share = gamma(operations) if operations > 1 else UNIT_ROUNDOFF
        return replace(self, error=self.error.plus(self.norm.plus(self.error).times(share).plus(UNDERFLOW)))


IDENTITY = Bounds(1.0, AffineBound(1.0, 0.0))


def joined(parts: Sequence[Bounds]) -> Bounds:
    """Maps side by side: squares add up, for slopes and for constants apart (Minkowski)."""

    def beside(bounds: Sequence[AffineBound]) -> AffineBound:
        return AffineBound(*(math.hypot(*numbers) * _SUM_UP for numbers in zip(*bounds, strict=True)))

    lipschitz = math.hypot(*(part.lipschitz for part in parts)) * _SUM_UP
    norm, error = beside([part.norm for part in parts]), beside([part.error for part in parts])
    return Bounds(lipschitz, norm, error, min(part.max_input_norm for part in parts))
