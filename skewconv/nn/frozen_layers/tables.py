"""Fourier transforms of real images as matrices, and how far the stored ones are from the exact ones.

F (2 frequencies, pixels) takes n pixels to half of their spectrum, a real and an imaginary row a frequency; frequency
f stands for d_f of them, itself or itself and its conjugate. By Parseval F^T D F = n I, so that G = D^(1/2) F / sqrt(n)
is an isometry, and the way back, F^T D / n = G^T D^(1/2) / sqrt(n), undoes it. Matrices B, one a frequency, commute
with D:

    (F^T D / n + E') B (F + E) = (G^T + E' D^(-1/2) sqrt(n)) B (G + D^(1/2) E / sqrt(n)),

which is at most (1 + e') ||B|| (1 + e) with the norms e and e' of the two errors as they stand there.
"""

import math

from torch import Tensor

from skewconv.nn.frozen_layers.proven_gain import WAVE_ERROR, norm_by_gram
from skewconv.ops.fourier import inverse_transform_table, parts_side_by_side, transform_table
from skewconv.rigor import ERROR_UP, MILLIONS_UP


def exact_tables(size: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """(F, F^T D / n) in float64, real and imaginary part of a frequency side by side, so that they are one block."""
    forward, inverse = transform_table(size), inverse_transform_table(size)
    return parts_side_by_side(forward), parts_side_by_side(inverse.T).T.contiguous()


def table_errors(forward: Tensor, inverse: Tensor, size: tuple[int, ...]) -> tuple[float, float]:
    """Proven bounds of e and e' above for tables as they are stored, whatever they hold.

    Args:
        forward: (2 frequencies, pixels).
        inverse: (pixels, 2 frequencies).
        size: of the images.
    """
    exact, exact_inverse = exact_tables(size)
    rows, pixels = exact.shape
    # A wave starts at one, so that the first pixel of the way back shows the shares d_f / n.
    shares = (exact_inverse[0, ::2] * pixels).round().repeat_interleave(2).sqrt()
    there = (forward.cpu().double() - exact) * shares[:, None]
    back = (inverse.cpu().double() - exact_inverse) / shares
    # The exact tables are themselves known to a few units in the last place, entry by entry.
    known = WAVE_ERROR * math.sqrt(2 * rows) * ERROR_UP
    root = math.sqrt(pixels)
    return norm_by_gram(there) / root * MILLIONS_UP + known, norm_by_gram(back) * root * MILLIONS_UP + known
