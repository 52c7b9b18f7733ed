"""Proofs that a matrix, or a filter, is orthogonal up to a known defect and does not expand."""

import math
from collections.abc import Callable
from fractions import Fraction

import torch
from torch import Tensor

from skewconv.nn.bounds.outward import sqrt_up
from skewconv.ops._eigen import OUTWARD, gamma, in_double, squaring_upper_bound


def gram_defect(matrix: Tensor, square: float = 1.0) -> float:
    """An upper bound of ||A^H A - s I||, or of ||A A^H - s I|| if A is wide, rounding included; max over the batch.

    Args:
        matrix: (*batch, rows, columns), floating or complex.
        square: s, the square that the singular values should have.
    """
    a = in_double(matrix.reshape(-1, *matrix.shape[-2:]))
    if not bool(torch.isfinite(a).all()):
        return math.nan
    tall = a if a.shape[-2] >= a.shape[-1] else a.mH
    residual = tall.mH @ tall - square * torch.eye(tall.shape[-1], dtype=a.dtype)
    # |fl(A^H A) - A^H A| <= gamma_k |A|^H |A| entry by entry (Higham, section 3.5), of norm <= gamma_k ||A||_F^2.
    frobenius = float(torch.linalg.vector_norm(a, dim=(-2, -1)).square().max())
    rounding = gamma(tall.shape[-2] + 4, is_complex=a.is_complex()) * frobenius * (1 + 1e-6)
    return (squaring_upper_bound(residual, 2) + rounding) * OUTWARD


def non_expansive(
    exact: Tensor, dtype: torch.dtype, defect: Callable[[Tensor, float], float] = gram_defect
) -> tuple[float, tuple[float, float]]:
    """A scale near one with which ``(exact * scale).to(dtype)`` has a gain proved to be <= 1, and its (min, max) gain.

    If ||A^H A - s I|| <= e, the singular values of A lie between sqrt(s - e) and sqrt(s + e). The proof is of the
    rounded tensor, and scaling rounds anew, so it is repeated until s + e <= 1. A tensor too far from orthogonal keeps
    its scale, and the gain returned says what it is.

    Args:
        exact: close to orthogonal, in float64 or complex128.
        dtype: what the layer stores.
        defect: (tensor, s) -> an upper bound e.
    """
    square = 1.0
    for attempt in range(5):
        scale = math.sqrt(square)
        e = defect((exact * scale).to(dtype), square)
        if not math.isfinite(e):
            return scale, (math.nan, math.nan)
        largest = sqrt_up(Fraction(square) + Fraction(e))
        if largest <= 1.0 or e > 0.5:
            break
        # A tensor that is exactly orthogonal, such as the identity, only shrinks in steps of its precision.
        square = 1.0 - 1.01 * e - attempt * torch.finfo(dtype).eps
    return scale, (max(0.0, math.sqrt(max(0.0, square - e)) - 4 * math.ulp(1.0)), largest)
