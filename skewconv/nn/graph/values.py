"""What is known of a value inside a graph, as a function of the image that the graph begins with."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from skewconv.nn.protocol.program import LARGEST, NOTHING, Float64Program, Growth
from skewconv.rigor import UNIT_ROUNDOFF, factor_up, gamma, product_up, sqrt_up

_FEW_UP = factor_up(64)
# Products that underflow lose less than 2^-1074 each; no layer has 2^100 of them.
_UNDERFLOW = Growth(0.0, 2.0**-970)


class Known(NamedTuple):
    """A Lipschitz constant, a bound of the norm, and a bound of the rounding error; the last two of the input's norm.

    These hold for inputs whose norm is within ``reach``: nothing overflows on the way from those.

    >>> image = Known(1.0, Growth(1.0, 0.0), NOTHING)
    >>> 2.0 <= image.plus(image).lipschitz < 2.0 + 1e-12
    True
    """

    lipschitz: float
    norm: Growth
    error: Growth
    reach: float = LARGEST

    def through(self, program: Float64Program) -> "Known":
        """The value of a program at this one: its own error, and its stretching of the error made so far."""
        return Known(
            product_up([self.lipschitz, program.lipschitz]),
            program.norm.after(self.norm),
            program.error.after(self.norm.plus(self.error)).plus(self.error.times(program.lipschitz)),
            min(self.reach, self.norm.plus(self.error).stays_below(program.reach)),
        )

    def stretched(self, factor: float) -> "Known":
        """A linear map without rounding, of this norm at most."""
        lipschitz = product_up([self.lipschitz, factor])
        return Known(lipschitz, self.norm.times(factor), self.error.times(factor), self.reach)

    def repeated(self, copies: Fraction) -> "Known":
        """Each entry repeated so often, or a share of the entries: the norm grows by the root."""
        return self if copies == 1 else self.stretched(sqrt_up(copies))

    def rounded(self, operations: int) -> "Known":
        """So many further roundings of every entry."""
        share = gamma(operations) if operations > 1 else UNIT_ROUNDOFF
        further = self.norm.plus(self.error).times(share).plus(_UNDERFLOW)
        return self._replace(error=self.error.plus(further))

    def plus(self, other: "Known") -> "Known":
        """The sum of two values of one shape, before it is rounded."""
        lipschitz = (self.lipschitz + other.lipschitz) * _FEW_UP
        reach = min(self.reach, other.reach)
        return Known(lipschitz, self.norm.plus(other.norm), self.error.plus(other.error), reach)

    def shifted(self, size: float) -> "Known":
        """A constant of this norm added, before the sum is rounded."""
        return self._replace(norm=self.norm.plus(Growth(0.0, size)))

    def computed(self) -> "Known":
        """The same of inputs only for which this value does not overflow."""
        return self._replace(reach=min(self.reach, self.norm.plus(self.error).stays_below(LARGEST)))


IMAGE = Known(1.0, Growth(1.0, 0.0), NOTHING)


def joined(values: Sequence[Known]) -> Known:
    """Values side by side: squares add up, for slopes and for constants apart (Minkowski)."""
    norms, errors = [value.norm for value in values], [value.error for value in values]
    lipschitz, reach = _root_of_squares([value.lipschitz for value in values]), min(value.reach for value in values)
    return Known(lipschitz, _beside(norms), _beside(errors), reach)


def _beside(parts: Sequence[Growth]) -> Growth:
    return Growth(_root_of_squares([p.slope for p in parts]), _root_of_squares([p.constant for p in parts]))


def _root_of_squares(numbers: Sequence[float]) -> float:
    return math.hypot(*numbers) * _FEW_UP
