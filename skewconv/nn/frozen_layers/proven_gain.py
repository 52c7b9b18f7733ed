"""The proof of a frozen operator's gain: of what is stored, not of what it was rounded from."""

import math
from fractions import Fraction

import torch
from torch import Tensor

from skewconv.ops.fourier import grid, half_of_frequencies, image_waves
from skewconv.rigor import (
    ERROR_UP,
    FEW_ROUNDINGS_UP,
    MILLIONS_DOWN,
    UNIT_ROUNDOFF,
    gamma,
    gram_defect_upper_bound,
    in_double,
    ldexp_up,
    non_expansive_scale,
    power_of_two_scaled,
    spectral_norm_upper_bound,
    sqrt_down,
    sqrt_up,
)

# A wave in float64: an angle of at most a few turns, its cosine or sine, its share.
WAVE_ERROR = 64 * UNIT_ROUNDOFF


def rounded_with_gain(
    exact: Tensor,
    dtype: torch.dtype,
    gain: tuple[float, float],
    tol: float,
    injective: bool,
    *,
    stretch: float = 1.0,
) -> tuple[Tensor, tuple[float, float]]:
    """An operator rounded to its dtype, and the proven gain of what was rounded.

    A map that is orthogonal to the tolerance is also shrunk by about one rounding error, so that its gain is proven to
    be at most one; one that is further off (a degree the user fixed) keeps its scale and says its gain.

    Args:
        exact: (*batch, out, in) in double precision.
        dtype: to round to.
        gain: of the polynomial the operator was made from, which says how far off it may be.
        tol: the largest relative change allowed.
        injective: whether nothing is cut off, so that the smallest gain means something.
        stretch: by which what surrounds the operator stretches at most; it is shrunk by that, too.
    """
    off = max(1 - gain[0], gain[1] - 1)
    if off <= tol:
        scale, (low, high) = non_expansive_scale(exact, dtype, stretch=stretch)
        rounded = (exact * scale).to(dtype)
    else:
        rounded = exact.to(dtype)
        low, high = gain_of_matrices(rounded)
    return rounded, (low if injective else 0.0, high)


def gain_of_matrices(matrices: Tensor) -> tuple[float, float]:
    """Proven (min, max) of the singular values of matrices (*batch, rows, columns), from their entries alone.

    Of A^H A - s I for the mean square s of the singular values where they are all alike, which is tight there; of the
    largest eigenvalue where they are not.
    """
    # Squares of what is scaled neither underflow nor overflow.
    scaled, exponent = power_of_two_scaled(in_double(matrices))
    square = float((scaled.abs().square().sum((-2, -1)) / min(matrices.shape[-2:])).mean())
    defect = gram_defect_upper_bound(scaled, square)
    if not defect <= 0.01 * square:
        return 0.0, spectral_norm_upper_bound(matrices)
    return gain_around(square, defect, exponent)


def gain_around(square: float, defect: float, exponent: int) -> tuple[float, float]:
    """2^exponent (sqrt(s - e), sqrt(s + e)), rounded outward: the singular values where ||A^H A - s I|| <= e."""
    low, high = max(Fraction(0), Fraction(square) - Fraction(defect)), Fraction(square) + Fraction(defect)
    # Near the ends of float64 even a power of two rounds, or overflows; zero is always below.
    smallest = math.ldexp(sqrt_down(low), exponent) if -900 < exponent < 900 else 0.0
    return smallest, ldexp_up(sqrt_up(high), exponent)


def gain_on_image(weight: Tensor, size: tuple[int, ...]) -> tuple[float, float]:
    """Proven (min, max) of the singular values of a circular convolution on images of one size: those of its symbol.

    The symbol at a frequency is the sum of the taps times waves. A wave is known to a few units in the last place, and
    the sum errs by gamma of the absolute taps, entry by entry.

    Args:
        weight: (out, in, *kernel), of odd sizes.
        size: of the images; the kernel may wrap around them.
    """
    taps, exponent = power_of_two_scaled(in_double(weight).flatten(2))
    positions = grid([torch.arange(k) - k // 2 for k in weight.shape[2:]])
    cosines, sines = image_waves(half_of_frequencies(size), positions, size)
    symbol = torch.complex(*(torch.einsum("ft,oit->foi", wave, taps) for wave in (cosines, sines)))
    low, high = gain_of_matrices(symbol)
    # Real and imaginary part of each entry err by this share of the absolute taps, so the matrix by its norm.
    share = (WAVE_ERROR + gamma(taps.shape[2] + 4)) * math.sqrt(2)
    error = share * float(torch.linalg.vector_norm(taps.abs().sum(2))) * ERROR_UP
    least = math.ldexp(max(0.0, (low - error) * MILLIONS_DOWN), exponent) if -900 < exponent < 900 else 0.0
    return least, ldexp_up((high + error) * FEW_ROUNDINGS_UP, exponent)


def norm_by_gram(matrix: Tensor) -> float:
    """A proven bound of the norm of one matrix (rows, columns), within a factor of two: by products only."""
    size = float(matrix.abs().max())
    if size == 0.0:
        return 0.0
    # A power of two, so that the division is exact.
    scale = math.ldexp(1.0, math.frexp(size)[1])
    square = gram_defect_upper_bound(matrix / scale, 0.0)
    return math.sqrt(square) * scale * FEW_ROUNDINGS_UP
