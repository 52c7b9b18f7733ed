"""Products of integer matrices by floating-point hardware, without any rounding.

Each integer is cut into three slices of b bits, so that x = x_0 + x_1 2^b + x_2 2^2b:

    x_2        x_1        x_0
    |--------|----------|----------|      each between -2^(b-1) and 2^(b-1)

A product of two slices is a sum of integers, and b is chosen such that no partial sum in any order can exceed 2^53.
Float64 adds and multiplies such integers exactly, fused or not. Libraries that break the rules of float64 would be
noticed: each product is held against a random vector, modulo 2^64 in integer arithmetic.

References: Ozaki, Ogita, Oishi, Rump, "Error-free transformations of matrix multiplication", 2012 (the slices);
Freivalds, "Probabilistic machines can use less running time", 1977 (the random vector).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from skewconv.errors import SkewconvError

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SLICES = 3
# Half a unit of the last bit, and what may underflow besides.
REMAINDER = 0.5000001


class InexactProductError(SkewconvError):
    """A matrix product that should have been exact was not."""


def slice_width(terms: int) -> int:
    """The largest number of bits of a slice for which sums of 3 * terms products of slices stay within 2^53."""
    return (53 - (SLICES * terms - 1).bit_length()) // 2 + 1


def integer_slices(x: Integers, width: int) -> list[Integers]:
    """x_0, x_1, x_2 of integers up to 2^(3b - 2) in absolute value."""
    half = 1 << (width - 1)
    slices = []
    for _ in range(SLICES - 1):
        low = ((x + half) & (2 * half - 1)) - half
        slices.append(low)
        x = (x - low) >> width
    return [*slices, x]


@dataclass(frozen=True)
class Sliced:
    """A float64 matrix W (terms, columns) as W = sum_i slices_i 2^(b i + exponent), within REMAINDER 2^exponent.

    Slices are integers held in float64; each times a random probe (columns,), modulo 2^64, is kept for comparison.
    """

    slices: tuple[Floats, ...]
    exponent: int
    probe: Integers
    probed: tuple[Integers, ...]

    @property
    def width(self) -> int:
        return slice_width(self.slices[0].shape[0])


def sliced(matrix: Floats) -> Sliced:
    """Cut a finite float64 matrix (terms, columns) into slices, from its largest entry downwards."""
    width = slice_width(matrix.shape[0])
    _, top = math.frexp(float(np.abs(matrix).max(initial=0.0)))
    # The largest entry is now below one. What underflows here is far below the last bit that is kept.
    rest = np.ldexp(matrix, -top)
    last = 2 - SLICES * width
    slices: list[Floats] = []
    for i in reversed(range(SLICES)):
        unit = last + width * i
        part = np.rint(np.ldexp(rest, -unit))
        rest = rest - np.ldexp(part, unit)  # exact: what is left has fewer bits than what was there
        slices.insert(0, part)
    probe = np.asarray(np.random.default_rng().integers(-(2**63), 2**63, size=matrix.shape[1], dtype=np.int64))
    probed = tuple(np.asarray(part.astype(np.int64) @ probe) for part in slices)
    return Sliced(tuple(slices), top + last, probe, probed)


def product(left: Sequence[Integers], right: Sliced) -> list[Floats]:
    """The five sums P_s = sum_{i + j = s} x_i W_j of slices (rows, terms), exact: x W = sum_s P_s 2^(b s)."""
    floats = [part.astype(np.float64) for part in left]
    sums = []
    for s in range(2 * SLICES - 1):
        pairs = [(i, s - i) for i in range(SLICES) if 0 <= s - i < SLICES]
        total: Floats = np.sum([floats[i] @ right.slices[j] for i, j in pairs], axis=0)
        probed: Integers = np.sum([left[i] @ right.probed[j] for i, j in pairs], axis=0)
        if not np.array_equal(total.astype(np.int64) @ right.probe, probed):
            raise InexactProductError(
                "a product of integers below 2^53 was rounded: the BLAS library behind NumPy does not compute in "
                "float64 as IEEE 754 demands; use another one"
            )
        sums.append(total)
    return sums


def rounded(sums: Sequence[Floats], width: int, bits: int) -> tuple[Integers, int]:
    """(m, e) with |m 2^e - sum_s P_s 2^(b s)| < 2^(e + 1) and |m| < 2^bits, for bits <= 60.

    Carries run upwards from the lowest sum; each rounds down by less than one unit of the next.
    """
    scaled = [np.ldexp(part, width * s) for s, part in enumerate(sums)]
    # The float64 sum is off by far less than 2^-48 of the absolute values, so what follows is a bound of the exact one.
    largest = np.abs(np.sum(scaled, axis=0)) + np.ldexp(np.sum(np.abs(scaled), axis=0), -48)
    _, top = math.frexp(float(largest.max(initial=0.0)))
    drop = max(0, top - bits + 1)
    steps, shift = divmod(min(drop, width * (len(sums) - 1)), width)
    whole = [part.astype(np.int64) for part in sums]
    carry = whole[0]
    for part in whole[1 : steps + 1]:
        carry = part + (carry >> width)
    total = carry >> shift
    # Modulo 2^64 the order of the sum does not matter, and the result is below 2^60.
    for s, part in enumerate(whole[steps + 1 :], 1):
        total = total + (part << np.int64(width * s - shift))
    rest = drop - steps * width - shift
    return (total >> rest if rest else total), drop
