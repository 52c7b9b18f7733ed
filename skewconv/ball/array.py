"""Arrays as balls: integers times a power of two, and how far, in the l2 norm, the truth may be from them.

Layers that stretch nothing do not stretch this distance either, which is why a whole network costs so few digits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from flint import arb

from skewconv.ball.exact import REMAINDER, Floats, Integers, Sliced, integer_slices, product, rounded

# A multiple of three slices of sums of up to 2^17 terms, with a bit to spare; a product of two such has room in 128.
BITS = 54


def power_of_two(exponent: int) -> arb:
    return arb(1) * arb(2) ** exponent


@dataclass(frozen=True)
class BallArray:
    """Real arrays y (n, *shape) with ||y - mantissa 2^exponent|| <= error for each, mantissas below 2^BITS."""

    mantissa: Integers
    exponent: int
    error: arb

    @property
    def entries(self) -> int:
        return int(self.mantissa[:1].size)

    def floats(self) -> Floats:
        """The centre, rounded to float64: for looking at, and for sizes that get a margin."""
        return np.ldexp(self.mantissa.astype(np.float64), self.exponent)

    def norm(self) -> arb:
        """At least the norm of each array of the centre."""
        flat = self.mantissa.reshape(len(self.mantissa), -1).astype(np.float64)
        # A sum of N non-negative products errs by N 2^-53 of itself; 1e-6 covers that, and the roundings before it.
        largest = math.sqrt(float(np.square(flat).sum(1).max(initial=0.0))) * (1 + 1e-6)
        return arb(largest) * power_of_two(self.exponent)

    def reshaped(self, mantissa: Integers) -> "BallArray":
        """The same numbers in another order, or some of them, or each at most once and zeros besides."""
        return replace(self, mantissa=mantissa)

    def point(self, mantissa: Integers) -> "BallArray":
        """Numbers of the centre, without the error."""
        return BallArray(mantissa, self.exponent, arb(0))

    def with_error(self, more: arb) -> "BallArray":
        return replace(self, error=(self.error + more).upper())

    def units(self, number: float) -> arb:
        """The norm of this number of units of the last bit in each entry."""
        return arb(self.entries).sqrt() * arb(number) * power_of_two(self.exponent)

    def shortened(self, bits: int = BITS) -> "BallArray":
        return self.at_exponent(self.exponent + max(0, self._bits() + 1 - bits))

    def _bits(self) -> int:
        """The least e with mantissas of at most 2^e."""
        return math.frexp(float(np.abs(self.mantissa).max(initial=0)))[1]

    def at_exponent(self, exponent: int) -> "BallArray":
        """The same with another power of two, no smaller than allows mantissas below 2^60."""
        shift = self.exponent - exponent
        if shift >= 0:
            return replace(self, mantissa=self.mantissa << np.int64(shift), exponent=exponent)
        if shift < -62:
            gone = replace(self, mantissa=np.zeros_like(self.mantissa), exponent=exponent)
            return gone.with_error(gone.units(1))
        # Rounded to the nearest, ties upwards.
        half = np.int64(1 << (-shift - 1))
        short = replace(self, mantissa=(self.mantissa + half) >> np.int64(-shift), exponent=exponent)
        return short.with_error(short.units(0.5))

    def plus(self, other: "BallArray") -> "BallArray":
        """The sum; the other may have one array for all of these."""
        # With one exponent, the smallest at which neither overflows.
        tops = [x._bits() + x.exponent for x in (self, other)]
        exponent = max(min(self.exponent, other.exponent), max(tops) - 60)
        first, second = self.at_exponent(exponent), other.at_exponent(exponent)
        total = replace(first, mantissa=first.mantissa + second.mantissa)
        spread = arb(math.prod(total.mantissa.shape[1:])) / arb(max(1, second.entries))
        return total.with_error(second.error * spread.sqrt()).shortened()

    def scaled(self, factor: arb) -> "BallArray":
        return self.scaled_channels([factor])

    def scaled_channels(self, factors: Sequence[arb]) -> "BallArray":
        """Times a number for each channel, (n, channels, ...), or one for all of them."""
        most = largest([factor.abs_upper() for factor in factors])
        top = _top(most)
        c = [_nearby(factor, top) for factor in factors]
        # With x = x_1 2^31 + x_0 and c = c_1 2^31 + c_0 the product is x_1 c_1 2^62 + (x_1 c_0 + x_0 c_1) 2^31 +
        # x_0 c_0, and the last two terms lose less than one unit each when they are shifted into the first.
        x = self.shortened()
        ones = (1,) * (x.mantissa.ndim - 2)
        c_high = np.array([n >> 31 for n in c], dtype=np.int64).reshape(-1, *ones)
        c_low = np.array([n & (2**31 - 1) for n in c], dtype=np.int64).reshape(-1, *ones)
        high, low = x.mantissa >> np.int64(31), x.mantissa & np.int64(2**31 - 1)
        mantissa = high * c_high + ((high * c_low + low * c_high) >> np.int64(31))
        result = replace(x, mantissa=mantissa, exponent=x.exponent + top, error=arb(0))
        unit = power_of_two(top - 62)
        unsure = largest([(factor - arb(n) * unit).abs_upper() for factor, n in zip(factors, c, strict=True)])
        return result.with_error(result.units(2) + unsure * x.norm() + most * x.error)

    def times(self, matrix: Sliced, norm: arb) -> "BallArray":
        """y W along the last axis for W (terms, columns); as a map of these arrays W stretches by at most this norm."""
        terms, columns = matrix.slices[0].shape
        x = self.shortened(min(BITS, 3 * matrix.width - 3))
        rows = x.mantissa.reshape(-1, terms)
        sums = product(integer_slices(rows, matrix.width), matrix)
        mantissa, dropped = rounded(sums, matrix.width, BITS)
        exponent = x.exponent + matrix.exponent + dropped
        result = replace(x, mantissa=mantissa.reshape(*x.mantissa.shape[:-1], columns), exponent=exponent, error=arb(0))
        # A matrix whose entries are at most r has a norm of at most r sqrt(terms columns).
        cut = arb(REMAINDER) * power_of_two(matrix.exponent) * arb(terms * columns).sqrt()
        return result.with_error(result.units(2) + cut * x.norm() + norm * x.error)


def concatenated(parts: Sequence[BallArray], axis: int) -> BallArray:
    """Arrays side by side along an axis, whose errors add up; or, along axis 0, further arrays beside the others."""
    exponent = max(part.exponent for part in parts)
    same = [part.at_exponent(exponent) for part in parts]
    errors = [part.error for part in same]
    error = largest(errors) if axis == 0 else sum(errors, arb(0)).upper()
    return BallArray(np.concatenate([part.mantissa for part in same], axis), exponent, error)


def largest(values: Sequence[arb]) -> arb:
    """A number that none of these is above: of two with one nearest float, too."""
    result = values[0]
    for value in values[1:]:
        result = value.max(result)
    return result.upper()


def _top(value: arb) -> int:
    """The least e with value < 2^e, for a number that is at least zero; 0 for zero."""
    man, exponent = value.mid().man_exp()
    return int(man).bit_length() + int(exponent) + 1 if int(man) else 0


def _nearby(value: arb, top: int) -> int:
    """An integer next to value 2^(62 - top)."""
    man, exponent = (int(part) for part in value.mid().man_exp())
    shift = exponent + 62 - top
    return man << shift if shift >= 0 else man >> min(-shift, 10_000)


def from_floats(x: Floats) -> BallArray:
    """Float64 arrays (n, *shape), whose numbers stand for themselves."""
    _, top = math.frexp(float(np.abs(x).max(initial=0.0)))
    if not np.isfinite(x).all():
        raise ValueError("the numbers of a ball must be finite")
    exponent = top + 1 - BITS
    result = BallArray(np.rint(np.ldexp(x, -exponent)).astype(np.int64), exponent, arb(0))
    # Half a unit, and what may underflow.
    return result.with_error(result.units(0.5000001))
