"""Proved upper bounds of largest eigenvalues and singular values, the rounding errors of the proof included."""

import math
from collections.abc import Iterable

import numpy as np
import torch
from scipy.linalg import eigvalsh_tridiagonal
from torch import Tensor

from skewconv.errors import ShapeError
from skewconv.ops.checks import check_finite, check_floating

UNIT_ROUNDOFF = 2.0**-53
# A handful of scalar operations on non-negative numbers errs by less than this factor.
OUTWARD = 1 + 32 * UNIT_ROUNDOFF
_EIGVALSH_LIMIT = 256
_LANCZOS_STEPS = 400
_SQUARING_OVERSHOOT = 1.01


def gamma(operations: int, *, is_complex: bool) -> float:
    """Higham's gamma_n = n u / (1 - n u): the relative error of n operations in any order (Lemma 3.1).

    A complex product errs by sqrt(2) gamma_2 < 3 u and a complex sum by u (Lemma 3.5): 4 u covers both.
    """
    error = operations * UNIT_ROUNDOFF * (4 if is_complex else 1)
    return error / (1 - error) * OUTWARD


def in_double(tensor: Tensor) -> Tensor:
    """The tensor detached, on the CPU, in float64 or complex128: exact for every floating dtype."""
    dtype = torch.complex128 if tensor.is_complex() else torch.float64
    return tensor.detach().to("cpu", dtype).resolve_conj().resolve_neg()


def power_of_two_scaled(tensor: Tensor) -> tuple[Tensor, int]:
    """(t, e) with tensor = t 2^e and the largest real or imaginary part of t in [1/2, 1); e = 0 for zeros.

    Exact, but for entries 1e-300 times the largest, which underflow by less than any margin that is added later.
    """
    parts = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    _, exponent = math.frexp(float(parts.abs().max()))
    # Two steps, because 2^1074 is not a float64 while the smallest denormal is 2^-1074.
    half = -exponent // 2
    return tensor * math.ldexp(1.0, half) * math.ldexp(1.0, -exponent - half), exponent


def scaled_up(bound: float, exponent: int) -> float:
    """bound * 2^exponent rounded upward: infinity on overflow, never below the truth among the denormals."""
    try:
        value = math.ldexp(bound, exponent)
    except OverflowError:
        return math.inf
    return value if math.ldexp(value, -exponent) >= bound else math.nextafter(value, math.inf)


def spectral_norm_upper_bound(matrix: Tensor) -> float:
    """||A|| <= sqrt(lambda_max(A^H A) + margins): a proved bound of the largest singular value, max over the batch.

    >>> import torch
    >>> bound = spectral_norm_upper_bound(torch.tensor([[3.0, 0.0], [4.0, 0.0]]))
    >>> 5.0 <= bound < 5.0 + 1e-13
    True

    Args:
        matrix: (*batch, rows, columns), floating or complex.

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
    # |fl(A^H A) - A^H A| <= gamma_k |A|^H |A| entry by entry (Higham, section 3.5), of norm <= gamma_k ||A||_F^2.
    product_error = gamma(max(blocks.shape[-2:]) + 4, is_complex=blocks.is_complex()) * frobenius * (1 + 1e-6)
    square = largest_eigenvalue_upper_bound([grams], floor) + product_error
    return scaled_up(math.sqrt(square * OUTWARD) * OUTWARD, exponent)


def small_gram(blocks: Tensor) -> Tensor:
    """A^H A or A A^H, the smaller: (b, n, n) for blocks (b, rows, columns)."""
    tall = blocks if blocks.shape[-2] >= blocks.shape[-1] else blocks.mH
    if len(blocks) == 1 and not blocks.is_complex():
        # NumPy sees that both factors are one matrix and calls syrk: half the work of a general product.
        array = tall[0].numpy()
        return torch.from_numpy(np.asarray(array.T @ array)).unsqueeze(0)
    return tall.mH @ tall


def largest_eigenvalue_upper_bound(blocks: Iterable[Tensor], floor: float) -> float:
    """mu + margin >= lambda_max(H) for each Hermitian H, because Cholesky of mu I - H ran to completion.

    Args:
        blocks: batches (b, n, n) of Hermitian matrices, of which the lower triangles are read.
        floor: a positive lower bound of the answer; the search starts there.
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
    return (level + g / (1 - g) * size * (level + diagonal)) * OUTWARD


def _raised_level(block: Tensor, level: float) -> float:
    """The least level found, not below the one given, at which Cholesky proves every matrix of the block."""
    pending = block
    if len(block) > 1:
        pending = _unproved(block, level)
        # Large matrices first: the level of one proves most of the others at once, and few need an eigensolver.
        pending = pending[torch.linalg.matrix_norm(pending).argsort(descending=True)]
    while len(pending):
        guess = max(level, _top_eigenvalue(pending[0]))
        slack = 4 * UNIT_ROUNDOFF * block.shape[-1]
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


def _top_eigenvalue(matrix: Tensor) -> float:
    """lambda_max of one Hermitian matrix (n, n), not proved: a guess for the proof."""
    if len(matrix) <= _EIGVALSH_LIMIT:
        return float(torch.linalg.eigvalsh(matrix)[-1])
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
            if length == 0.0 or ritz - top <= 1e-13 * abs(ritz):
                return ritz
            top = ritz
        coupling.append(length)
        vector, previous = image / length, vector
    return top


def squarings_for(size: int) -> int:
    """Least j with n^(1 / 2^(j + 2)) <= 1.01: what j squarings of the n x n matrix A^H A overshoot ||A|| by."""
    return max(0, math.ceil(math.log2(max(1.0, math.log(size) / math.log(_SQUARING_OVERSHOOT)))) - 2)


def squaring_upper_bound(matrices: Tensor, steps: int) -> float:
    """||B|| <= ||B^(2^j)||_F^(1 / 2^j) for Hermitian B: products only, max over a batch (b, n, n).

    Delattre et al., ICML 2023. Each step is undone with its own rounding error: ||B||^2 <= ||fl(B^H B)|| + gamma_n
    ||B||_F^2 (Higham, section 3.5), so no error is amplified.
    """
    error = gamma(matrices.shape[-1] + 4, is_complex=matrices.is_complex())
    # A norm computed from n^2 entries errs by gamma_{n^2} at most.
    outward = 1 + 2 * gamma(2 * matrices.shape[-1] ** 2 + 8, is_complex=False)
    undo: list[tuple[Tensor, Tensor]] = []
    for _ in range(steps):
        norm = torch.linalg.matrix_norm(matrices)
        # norm / mantissa is a power of two, which scales exactly. Matrices too small to scale do not decide a maximum.
        scale = torch.where(norm > 2.0**-500, norm / torch.frexp(norm).mantissa, 1.0)
        matrices = matrices / scale[:, None, None]
        undo.append((scale, error * (norm / scale * outward) ** 2))
        matrices = matrices.mH @ matrices
    bound = torch.linalg.matrix_norm(matrices) * outward
    for scale, rounding in reversed(undo):
        bound = (bound + rounding).sqrt() * OUTWARD * scale
    return float(bound.max()) * OUTWARD
