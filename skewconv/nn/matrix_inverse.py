"""Inverses of stacks of matrices from products, Cholesky factors and triangular solves only.

LU factors of stacks are not used: those of 160 to 512 rows are wrong with MKL on two threads of some processors, mostly
without an error.
"""

import math
from typing import Any

import torch
from torch import Tensor

from skewconv.errors import NotFiniteError
from skewconv.ops.torch_modes import tracing, values_at_hand

_LEAF = 16
_NEWTON_STEPS = 3


def accretive_inverse(matrix: Tensor) -> Tensor:
    """M^-1 for M with a Hermitian part (M + M^H) / 2 >= I, by 2 x 2 blocks without pivots.

    >>> import torch
    >>> matrix = torch.eye(40) + torch.ones(40, 40).triu(1) - torch.ones(40, 40).tril(-1)
    >>> bool((matrix @ accretive_inverse(matrix) - torch.eye(40)).abs().max() < 1e-4)
    True

    Newton's step X + X (I - M X) restores the digits that elimination loses where M is large, and QR takes over where
    that fails. Where no value may be looked at, two steps are made always, which also makes the derivatives right up to
    the third.

    Args:
        matrix: M, (*batch, n, n), real or complex.

    Raises:
        NotFiniteError: in float64, where M is so large that no X with M X = I was found.
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
    """[[A, B], [C, D]]^-1 from A^-1 and (D - C A^-1 B)^-1, whose Hermitian parts are >= I as well.

    These are as many multiplications as in one product of matrices of this size.
    """
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
