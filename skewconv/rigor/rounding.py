"""Directed rounding, errors of sums, and norms that are never below the exact value.

Reference: N. J. Higham, Accuracy and Stability of Numerical Algorithms, second edition, 2002.
"""

import math
import sys
from collections.abc import Iterable
from fractions import Fraction

import torch
from torch import Tensor

# One float64 operation errs by at most this share of its result.
UNIT_ROUNDOFF = 2.0**-53
# Bits after the point of fixed-point numbers: far more than a float64 has.
FRACTION_BITS = 128


def factor_up(roundings: int) -> float:
    """1 + n u, exactly, for an even n: it lifts a product or sum of non-negative floats above its exact value.

    A value that was rounded m times, the product with this factor included, is covered by n = 2 m.
    """
    return 1 + roundings * UNIT_ROUNDOFF


def factor_down(roundings: int) -> float:
    """1 - n u, exactly: it lowers a product or sum of non-negative floats below its exact value."""
    return 1 - roundings * UNIT_ROUNDOFF


# For a handful of scalar operations on non-negative numbers.
FEW_ROUNDINGS_UP = factor_up(32)
# For sums and norms of up to eight million, and of up to eight billion, non-negative numbers, added in any order.
MILLIONS_UP, MILLIONS_DOWN = 1 + 1e-9, 1 - 1e-9
BILLIONS_UP = 1 + 1e-6
# For bounds of rounding errors themselves: two digits are enough, and terms of second order are far below.
ERROR_UP = 1.01


def round_up(value: Fraction) -> float:
    """The least float64 >= value, infinity included."""
    try:
        nearest = float(value)
    except OverflowError:
        return math.inf if value > 0 else -sys.float_info.max
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def round_down(value: Fraction) -> float:
    """The largest float64 <= value, minus infinity included."""
    return -round_up(-value)


def sqrt_up(value: Fraction) -> float:
    """The least float64 >= sqrt(value)."""
    root, bits, is_exact = _integer_root(value)
    return round_up(Fraction(root if is_exact else root + 1, 2**bits))


def sqrt_down(value: Fraction) -> float:
    """The largest float64 <= sqrt(value)."""
    root, bits, _ = _integer_root(value)
    return round_down(Fraction(root, 2**bits))


def _integer_root(value: Fraction) -> tuple[int, int, bool]:
    """(r, b, whether r is exact) with r = floor(sqrt(value) 2^b), of at least FRACTION_BITS bits."""
    bits = FRACTION_BITS + max(0, value.denominator.bit_length() - value.numerator.bit_length())
    scaled = value * 4**bits
    root = math.isqrt(math.floor(scaled))
    return root, bits, root * root == scaled


def product_up(factors: Iterable[float]) -> float:
    """The product of non-negative bounds, each step rounded up; ones stay exactly one."""
    product = 1.0
    for factor in factors:
        exact = math.isfinite(product) and math.isfinite(factor)
        product = round_up(Fraction(product) * Fraction(factor)) if exact else product * factor
    return product


def ldexp_up(bound: float, exponent: int) -> float:
    """bound * 2^exponent rounded up: infinity on overflow, never below the truth among the denormals."""
    try:
        value = math.ldexp(bound, exponent)
    except OverflowError:
        return math.inf
    return value if math.ldexp(value, -exponent) >= bound else math.nextafter(value, math.inf)


def gamma(operations: int, *, is_complex: bool = False) -> float:
    """gamma_n = n u / (1 - n u), rounded up: the relative error of n operations in any order (Lemma 3.1).

    A complex product errs by sqrt(2) gamma_2 < 3 u and a complex sum by u (Lemma 3.5): 4 u covers both.
    """
    error = operations * UNIT_ROUNDOFF * (4 if is_complex else 1)
    return error / (1 - error) * FEW_ROUNDINGS_UP


def norm_factor_up(entries: int, safety: int = 1) -> float:
    """1 + s gamma_{n + 8}: it lifts a computed Euclidean norm of n real entries above the exact one.

    The safety s is 2 where the entries are rounded themselves, such as differences, or the norm is squared later.
    """
    return 1 + safety * gamma(entries + 8)


def gram_error_upper_bound(inner: int, frobenius_square: float, *, is_complex: bool) -> float:
    """gamma_{k + 4} ||A||_F^2 >= ||fl(A^H A) - A^H A||: gamma_k |A|^H |A| bounds it entry by entry (section 3.5).

    The sums have k terms, and ||A||_F^2 is as computed in float64.
    """
    return gamma(inner + 4, is_complex=is_complex) * frobenius_square * BILLIONS_UP


def in_double(tensor: Tensor) -> Tensor:
    """The tensor detached, on the CPU, in float64 or complex128: exact for every floating dtype."""
    dtype = torch.complex128 if tensor.is_complex() else torch.float64
    return tensor.detach().to("cpu", dtype).resolve_conj().resolve_neg()


def power_of_two_scaled(tensor: Tensor) -> tuple[Tensor, int]:
    """(t, e) with tensor = t 2^e and the largest real or imaginary part of t in [1/2, 1); e = 0 for zeros.

    Exact, but for entries 1e-300 times the largest, which underflow by less than any margin that is added later. The
    way back, for a bound, is ``ldexp_up``.
    """
    parts = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    _, exponent = math.frexp(float(parts.abs().max()))
    # Two steps, because 2^1074 is not a float64 while the smallest denormal is 2^-1074.
    half = -exponent // 2
    return tensor * math.ldexp(1.0, half) * math.ldexp(1.0, -exponent - half), exponent


def vector_norm_up(vectors: Tensor, *, safety: int = 1) -> Tensor:
    """Norms >= ||v|| over the last axis, in float64: (*batch, n) -> (*batch).

    Entries are scaled by a power of two before they are squared, so that only the zero vector has norm zero, and only a
    vector whose norm is no float64 has an infinite one. NaN stays NaN. For the safety see :func:`norm_factor_up`.
    """
    exact = vectors.detach().to(torch.complex128 if vectors.is_complex() else torch.float64)
    parts = torch.view_as_real(exact.resolve_conj()).flatten(-2) if exact.is_complex() else exact
    if parts.shape[-1] == 0:
        return parts.new_zeros(parts.shape[:-1])
    largest = parts.abs().amax(-1)
    exponent = torch.frexp(largest).exponent.where(torch.isfinite(largest), torch.zeros((), dtype=torch.int32))
    norms = torch.linalg.vector_norm(_times_power_of_two(parts, -exponent.unsqueeze(-1)), dim=-1)
    norms = _times_power_of_two(norms * norm_factor_up(parts.shape[-1], safety), exponent)
    # Among the denormals the way back rounds, by less than one of them.
    return torch.where(largest > 0, torch.nextafter(norms, torch.full_like(norms, torch.inf)), largest)


def _times_power_of_two(x: Tensor, exponent: Tensor) -> Tensor:
    """x 2^e in two steps, because 2^1074 is no float64 while the least denormal is 2^-1074."""
    half = exponent // 2
    return x * _power_of_two(half) * _power_of_two(exponent - half)


def _power_of_two(exponent: Tensor) -> Tensor:
    """2^e for |e| < 1023, from the bits of a float64: a library's power function may round."""
    return ((exponent.to(torch.int64) + 1023) << 52).view(torch.float64)
