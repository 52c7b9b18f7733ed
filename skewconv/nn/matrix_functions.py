"""Columns of the exponential of a skew-symmetric matrix, and inverses of stacks of matrices.

Inverses are made of products, Cholesky factors and triangular solves only: LU factors of stacks of 160 to 512 rows are
wrong with MKL on two threads of some processors, mostly without an error.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skewconv.errors import NotFiniteError
from skewconv.ops.products import matmul
from skewconv.ops.recurrence import ChannelWidths, MatrixProducts, Recurrence, apply_recurrence
from skewconv.ops.torch_modes import tracing, values_at_hand

# The Chebyshev series goes on beyond its interval: the estimate may be a few tenths short before its error shows.
_STEPS, _SAFETY = 8, 1.25
_LARGEST_RADIUS = 1000.0
# Matrices of norm 2^10 are halved to 1/2, where eight terms of the exponential err by less than 1e-8 of it.
_HALVINGS, _TERMS = 11, 8
_LEAF = 16
_NEWTON_STEPS = 3


def exponential_columns(skew: Tensor, count: int, *, inverse: bool = False, may_wait: bool = True) -> Tensor:
    """The first columns of exp(A), or of exp(-A), for a skew-symmetric A: (m, m) -> (m, count).

    A few columns come from the Chebyshev series exp(A) x = J_0(r) x + 2 sum_k J_k(r) phi_k on [-i r, i r]: products of
    A with these columns only, where the derivative of a full exponential takes that of a matrix twice as large.

    With ``may_wait`` the host looks at the norm of A, which decides how many terms there are. Without, no accelerator
    is waited for: the products are always the same, for norms up to 2^10, to a few digits less than those of the dtype.
    """
    if not may_wait:
        return _columns_by_squaring(-skew if inverse else skew, count)
    radius = _SAFETY * _norm_estimate(skew.detach())
    if not (4 * count <= len(skew) and 0 < radius <= _LARGEST_RADIUS):
        full: Tensor = torch.linalg.matrix_exp(-skew if inverse else skew)
        return full[:, :count]
    # scipy takes longer to import than all of this library, and training is the first to come here.
    from scipy.special import jv

    coefficients = jv(np.arange(int(1.5 * radius) + 50), radius)
    tails = np.abs(coefficients)[::-1].cumsum()[::-1]
    degree = max(1, int((tails > torch.finfo(skew.dtype).eps / 8).sum()))
    # u_k = 2 phi_k, so that u_{k+1} = (2 / r) A u_k + u_{k-1} after u_0 = x.
    steps = Recurrence(tuple(map(float, coefficients[: degree + 1])), (2.0, *(1.0,) * (degree - 2))[: degree - 1])
    start = torch.eye(count, dtype=skew.dtype, device=skew.device)
    products = MatrixProducts(ChannelWidths(1, len(skew), count, len(skew)))
    columns = apply_recurrence(start[None], (2 / radius) * skew[None], steps.adjoint() if inverse else steps, products)
    return columns[0].T


def _columns_by_squaring(skew: Tensor, count: int) -> Tensor:
    """exp(A) = exp(A / 2^n)^(2^n) by squares of E = exp - 1, whose digits the one would hide: 2 E + E^2.

    The terms of E are taken four at a time: E = (a + a^2 / 2! + .. + a^4 / 4!) + a^4 (a / 5! + .. + a^4 / 8!).
    """
    a = skew / 2**_HALVINGS
    square = matmul(a, a)
    powers = (a, square, matmul(square, a), matmul(square, square))
    low, high = (
        sum(power / math.factorial(k) for k, power in enumerate(powers, first)) for first in range(1, _TERMS, 4)
    )
    result = low + matmul(powers[-1], high)
    for _ in range(_HALVINGS - 1):
        result = 2 * result + matmul(result, result)
    columns = result[:, :count]
    return torch.eye(len(skew), count, dtype=skew.dtype, device=skew.device) + 2 * columns + matmul(result, columns)


def _norm_estimate(skew: Tensor) -> float:
    """A lower bound on ||A|| by power steps from a few fixed vectors, rarely below three quarters of it."""
    vectors = _start(len(skew), skew.dtype, skew.device)
    for _ in range(_STEPS):
        vectors = skew @ (vectors / torch.linalg.vector_norm(vectors, dim=0).clamp_min(torch.finfo(skew.dtype).tiny))
    return float(torch.linalg.vector_norm(vectors, dim=0).max())


@lru_cache(maxsize=16)
def _start(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.randn(size, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(device, dtype)


def accretive_inverse(matrix: Tensor) -> Tensor:
    """M^-1, (*batch, n, n), for M with a Hermitian part (M + M^H) / 2 >= I, by 2 x 2 blocks without pivots.

    Newton's step X + X (I - M X) restores the digits that elimination loses where M is large, and QR takes over where
    that fails. Where no value may be looked at, two steps are made always, which also makes the derivatives right up to
    the third. In float64 a NotFiniteError is raised where M is so large that no X with M X = I was found.
    """
    stack = matrix.reshape(-1, *matrix.shape[-2:])
    double = matrix.dtype in (torch.float64, torch.complex128)
    # Proofs are made in float64, and may wait for values anywhere.
    if tracing() or not (double or values_at_hand(matrix.device)):
        x = _by_blocks(stack.detach())
        for _ in range(2):
            x = x + x @ _residual(stack, x)
    else:
        x = known_inverse(stack, _verified(stack.detach(), double=double))
    return x.reshape(matrix.shape)


def known_inverse(matrix: Tensor, value: Tensor) -> Tensor:
    """M^-1 = value as a function of M, with derivatives of every order."""
    inverse: Tensor = _Inverse.apply(matrix, value)  # type: ignore[no-untyped-call]
    return inverse


class _Inverse(torch.autograd.Function):
    """The derivative is -X M' X, so a gradient G in X makes -X^H G X^H in M."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, value: Tensor) -> Tensor:
        inverse = value.view_as(value)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (inverse,) = ctx.saved_tensors
        # One conjugate is written down here, where X^H G X^H would take two.
        return -(inverse @ gradients[0].mH @ inverse).mH, None


def _verified(matrix: Tensor, *, double: bool) -> Tensor:
    """The inverse; in float64 and where M is large, its residual I - M X is mended and known to be small."""
    entries = torch.view_as_real(matrix.resolve_conj()) if matrix.is_complex() else matrix
    norm = float(torch.linalg.vector_norm(entries.flatten(1), dim=1).max())
    x = _by_blocks(matrix)
    # Elimination without pivots loses digits with the square of the norm: here float32 keeps five.
    small = norm < 8 + 2 * matrix.shape[-1] ** 0.5
    if not math.isfinite(norm) or (small and not double):
        return x
    eps = torch.finfo(matrix.dtype).eps
    for _ in range(_NEWTON_STEPS):
        residual = _residual(matrix, x)
        x = x + x @ residual
        # The step squares the residual.
        if float(torch.linalg.matrix_norm(residual).max()) <= eps**0.5:
            return x
    q, r = torch.linalg.qr(matrix)
    x = torch.linalg.solve_triangular(r, q.mH, upper=True)
    if double and not float(_residual(matrix, x).abs().max()) <= min(0.1, 1e4 * eps * norm):
        raise NotFiniteError(
            f"no inverse of a matrix of norm up to {norm:.1e} was found in float64; make the weights (alpha) smaller"
        )
    return x


def _residual(matrix: Tensor, inverse: Tensor) -> Tensor:
    return torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device) - matrix @ inverse


def _by_blocks(matrix: Tensor) -> Tensor:
    """[[A, B], [C, D]]^-1 from A^-1 and (D - C A^-1 B)^-1, whose Hermitian parts are >= I as well."""
    n = matrix.shape[-1]
    if n <= _LEAF:
        factor = torch.linalg.cholesky_ex(matrix.mH @ matrix)[0]
        half = torch.linalg.solve_triangular(factor, matrix.mH, upper=False)
        return torch.linalg.solve_triangular(factor.mH, half, upper=True)
    top, bottom = matrix.split((n // 2, n - n // 2), -2)
    (a, b), (c, d) = (rows.split((n // 2, n - n // 2), -1) for rows in (top, bottom))
    first = _by_blocks(a)
    right, left = first @ b, c @ first
    last = _by_blocks(torch.baddbmm(d, c, right, alpha=-1))
    corner = right @ last
    upper = torch.cat([torch.baddbmm(first, corner, left), -corner], -1)
    return torch.cat([upper, torch.cat([-(last @ left), last], -1)], -2)
