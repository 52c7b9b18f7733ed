"""Proven bounds of eigenvalues and singular values, the rounding errors of the proof included."""

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from skewconv.checks import check_finite, check_floating
from skewconv.errors import ShapeError
from skewconv.rigor.rounding import (
    FEW_ROUNDINGS_UP,
    UNIT_ROUNDOFF,
    gamma,
    gram_error_upper_bound,
    in_double,
    ldexp_up,
    norm_factor_up,
    power_of_two_scaled,
)

_EIGVALSH_LIMIT = 256
# Rows from which a symmetric product is worth its own call.
LARGE = 1024
_LANCZOS_STEPS = 400
_OVERSHOOT = 1.01


def spectral_norm_upper_bound(matrix: Tensor) -> float:
    """||A|| <= sqrt(lambda_max(A^H A) + margins): a proven bound of the largest singular value, max over the batch.

    The relative excess is about 1e-12 for 64 x 64 matrices and 1e-9 for 3072 x 3072.
    Reference: S. M. Rump, Verification of positive definiteness, BIT 46 (2006).
    """
    check_floating(matrix, "matrix")
    if matrix.dim() < 2 or matrix.numel() == 0:
        raise ShapeError(
            f"matrix must have shape (*batch, rows, columns) with every size at least 1, got {tuple(matrix.shape)}"
        )
    check_finite(matrix, "matrix")
    blocks, exponent = power_of_two_scaled(in_double(matrix.reshape(-1, *matrix.shape[-2:])))
    if not blocks.any():
        return 0.0
    grams = small_gram(blocks)
    floor = float(grams.diagonal(dim1=-2, dim2=-1).real.max())
    frobenius = float(blocks.abs().square().sum((-2, -1)).max())
    product_error = gram_error_upper_bound(max(blocks.shape[-2:]), frobenius, is_complex=blocks.is_complex())
    square = largest_eigenvalue_upper_bound([grams], floor) + product_error
    return ldexp_up(math.sqrt(square * FEW_ROUNDINGS_UP) * FEW_ROUNDINGS_UP, exponent)


def small_gram(blocks: Tensor, symmetric_from: int = 0) -> Tensor:
    """A^H A or A A^H, the smaller: (b, n, n) for blocks (b, rows, columns); n from which half the product is made."""
    tall = blocks if blocks.shape[-2] >= blocks.shape[-1] else blocks.mH
    if len(blocks) == 1 and not blocks.is_complex() and tall.shape[-1] >= symmetric_from:
        # NumPy sees that both factors are one matrix and calls syrk: half the work of a general product.
        array = tall[0].numpy()
        return torch.from_numpy(np.asarray(array.T @ array)).unsqueeze(0)
    return tall.mH @ tall


def largest_eigenvalue_upper_bound(blocks: Iterable[Tensor], floor: float) -> float:
    """mu + margin >= lambda_max(H) for each Hermitian H, because Cholesky of mu I - H ran to completion.

    Of the batches (b, n, n) the lower triangles are read; the search starts at ``floor``, a positive lower bound.
    """
    level, diagonal, size, is_complex = floor, 0.0, 1, False
    for block in blocks:
        level = _raised_level(block, level)
        diagonal = max(diagonal, float(block.diagonal(dim1=-2, dim2=-1).real.abs().max()))
        size, is_complex = block.shape[-1], block.is_complex()
    # If floating-point Cholesky of A completes, R^H R = A + E with |E_ij| <= g / (1 - g) sqrt(a_ii a_jj), g =
    # gamma_{n+1} (Demmel; Higham, Theorem 10.5), so lambda_min(A) >= -g / (1 - g) tr(A): Rump 2006. Twice the count
    # covers libraries that multiply by reciprocals or sum in blocks, and the rounding of the diagonal of mu I - H.
    g = gamma(2 * (size + 4), is_complex=is_complex)
    return (level + g / (1 - g) * size * (level + diagonal)) * FEW_ROUNDINGS_UP


def _raised_level(block: Tensor, level: float) -> float:
    """The least level found, not below the one given, at which Cholesky proves every matrix of the block."""
    pending = block
    if len(block) > 1:
        pending = _unproved(block, level)
        # Large matrices first: the level of one proves most of the others at once, and few need an eigensolver.
        pending = pending[torch.linalg.matrix_norm(pending).argsort(descending=True)]
    while len(pending):
        guess = max(level, _top_eigenvalue(pending[0]))
        slack = _guess_error(block.shape[-1])
        while len(_unproved(pending[:1], guess * (1 + slack))):
            slack *= 8
        level = guess * (1 + slack)
        pending = _unproved(pending[1:], level)
    return level


def _unproved(block: Tensor, level: float) -> Tensor:
    """Those H of the block (b, n, n) for which Cholesky of level I - H breaks down."""
    shifted = -block
    shifted.diagonal(dim1=-2, dim2=-1).add_(level)
    _, info = torch.linalg.cholesky_ex(shifted)
    return block[info != 0] if bool(info.any()) else block[:0]


def _guess_error(size: int) -> float:
    """The relative error that a guess is expected to have; from Lanczos as large as the margin of Cholesky."""
    return 4 * UNIT_ROUNDOFF * size * (1 if size <= _EIGVALSH_LIMIT else size)


def _top_eigenvalue(matrix: Tensor) -> float:
    """lambda_max of one Hermitian matrix (n, n), not proven: a guess for the proof."""
    if len(matrix) <= _EIGVALSH_LIMIT:
        return float(torch.linalg.eigvalsh(matrix)[-1])
    # scipy takes longer to import than all of this library, and few programs come here.
    from scipy.linalg import eigvalsh_tridiagonal

    # Lanczos without re-orthogonalisation: ghost copies do not spoil the largest Ritz value.
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(len(matrix), dtype=matrix.dtype, generator=generator)
    vector, previous = vector / vector.norm(), torch.zeros_like(vector)
    diagonal: list[float] = []
    coupling: list[float] = []
    top = -math.inf
    for step in range(1, _LANCZOS_STEPS + 1):
        image = matrix @ vector - (coupling[-1] if coupling else 0.0) * previous
        diagonal.append(float(torch.vdot(vector, image).real))
        image -= diagonal[-1] * vector
        length = float(image.norm())
        if step % 10 == 0 or length == 0.0:
            ritz = float(eigvalsh_tridiagonal(diagonal, coupling, select="i", select_range=(step - 1, step - 1))[0])
            if length == 0.0 or ritz - top <= _guess_error(len(matrix)) / 4 * abs(ritz):
                return ritz
            top = ritz
        coupling.append(length)
        vector, previous = image / length, vector
    return top


def squarings_for(size: int) -> int:
    """Least j with n^(1 / 2^(j + 2)) <= 1.01: what j squarings of the n x n matrix A^H A overshoot ||A|| by."""
    return max(0, math.ceil(math.log2(max(1.0, math.log(size) / math.log(_OVERSHOOT)))) - 2)


def squaring_upper_bound(matrices: Tensor, steps: int) -> float:
    """||B|| <= ||B^(2^j)||_F^(1 / 2^j) for Hermitian B: products only, max over a batch (b, n, n).

    Each step is undone with its own rounding error: ||B||^2 <= ||fl(B^H B)|| + gamma_n ||B||_F^2 (Higham, section 3.5),
    so no error is amplified. Reference: Delattre et al., Gram Iteration, ICML 2023. Matrices in float32, whose u is
    2^29 times that of float64, are squared as such, and their norms taken in float64.
    """
    wide = torch.promote_types(matrices.dtype, torch.float64)
    coarser = round(torch.finfo(matrices.dtype).eps / torch.finfo(wide).eps)
    error = gamma((matrices.shape[-1] + 4) * coarser, is_complex=matrices.is_complex())
    # A norm computed from n^2 entries, real and imaginary parts, errs by gamma_{2 n^2} at most.
    norm_up = norm_factor_up(2 * matrices.shape[-1] ** 2, safety=2)
    undo: list[tuple[Tensor, Tensor]] = []
    for _ in range(steps):
        norm = torch.linalg.matrix_norm(matrices, dtype=wide)
        # norm / mantissa is a power of two, which scales exactly. Matrices too small to scale do not decide a maximum.
        scale = torch.where(norm > 2.0**-500, norm / torch.frexp(norm).mantissa, 1.0)
        matrices = matrices / scale[:, None, None].to(matrices.dtype)
        undo.append((scale, error * (norm / scale * norm_up) ** 2))
        matrices = small_gram(matrices, LARGE)
    bound = torch.linalg.matrix_norm(matrices, dtype=wide) * norm_up
    for scale, rounding in reversed(undo):
        bound = (bound + rounding).sqrt() * FEW_ROUNDINGS_UP * scale
    return float(bound.max()) * FEW_ROUNDINGS_UP
