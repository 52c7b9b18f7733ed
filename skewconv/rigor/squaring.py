"""Proven bounds of the norms of Hermitian matrices by repeated squaring: products only, so a batch is one product.

Reference: Delattre et al., Efficient Bound of Lipschitz Constant for Convolutional Layers by Gram Iteration, ICML 2023.
"""

import math

import torch
from torch import Tensor

from skewconv.rigor.directed import FEW_ROUNDINGS_UP
from skewconv.rigor.summation import gamma, norm_factor_up

_OVERSHOOT = 1.01


def squarings_for(size: int) -> int:
    """Least j with n^(1 / 2^(j + 2)) <= 1.01: what j squarings of the n x n matrix A^H A overshoot ||A|| by."""
    return max(0, math.ceil(math.log2(max(1.0, math.log(size) / math.log(_OVERSHOOT)))) - 2)


def squaring_upper_bound(matrices: Tensor, steps: int) -> float:
    """||B|| <= ||B^(2^j)||_F^(1 / 2^j) for Hermitian B: products only, max over a batch (b, n, n).

    Each step is undone with its own rounding error: ||B||^2 <= ||fl(B^H B)|| + gamma_n ||B||_F^2 (Higham, section 3.5),
    so no error is amplified.
    """
    error = gamma(matrices.shape[-1] + 4, is_complex=matrices.is_complex())
    # A norm computed from n^2 entries, real and imaginary parts, errs by gamma_{2 n^2} at most.
    norm_up = norm_factor_up(2 * matrices.shape[-1] ** 2, safety=2)
    undo: list[tuple[Tensor, Tensor]] = []
    for _ in range(steps):
        norm = torch.linalg.matrix_norm(matrices)
        # norm / mantissa is a power of two, which scales exactly. Matrices too small to scale do not decide a maximum.
        scale = torch.where(norm > 2.0**-500, norm / torch.frexp(norm).mantissa, 1.0)
        matrices = matrices / scale[:, None, None]
        undo.append((scale, error * (norm / scale * norm_up) ** 2))
        matrices = matrices.mH @ matrices
    bound = torch.linalg.matrix_norm(matrices) * norm_up
    for scale, rounding in reversed(undo):
        bound = (bound + rounding).sqrt() * FEW_ROUNDINGS_UP * scale
    return float(bound.max()) * FEW_ROUNDINGS_UP
