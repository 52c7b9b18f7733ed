"""Proofs that a matrix or a filter is orthogonal up to a known defect; norms of filters of absolute values."""

import math
from collections.abc import Callable
from fractions import Fraction

import torch
from torch import Tensor

from skewconv.rigor.eigenvalues import LARGE, small_gram, squaring_upper_bound
from skewconv.rigor.rounding import (
    BILLIONS_UP,
    ERROR_UP,
    FEW_ROUNDINGS_UP,
    MILLIONS_UP,
    gamma,
    gram_error_upper_bound,
    in_double,
    sqrt_up,
)

_VECTORS = 8


def gram_defect_upper_bound(matrix: Tensor, square: float = 1.0) -> float:
    """An upper bound of ||A^H A - s I||, or of ||A A^H - s I|| if A is wide, rounding included; max over the batch.

    The matrix A is (*batch, rows, columns), and s the square that its singular values should have.
    """
    a = in_double(matrix.reshape(-1, *matrix.shape[-2:]))
    if not bool(torch.isfinite(a).all()):
        return math.nan
    residual = small_gram(a, LARGE)
    residual.diagonal(dim1=-2, dim2=-1).sub_(square)
    frobenius = float(torch.linalg.vector_norm(a, dim=(-2, -1)).square().max())
    rounding = gram_error_upper_bound(max(a.shape[-2:]), frobenius, is_complex=a.is_complex())
    if len(a) == 1 and not a.is_complex() and residual.shape[-1] >= LARGE:
        # The residual was the difference that needed float64; two digits of its norm are enough.
        rounding += 2.0**-24 * float(torch.linalg.matrix_norm(residual).max()) * ERROR_UP + 2.0**-100
        residual = residual.float()
    return (squaring_upper_bound(residual, 2) + rounding) * FEW_ROUNDINGS_UP


def _estimated_defect(matrix: Tensor, square: float) -> float:
    """About what :func:`gram_defect_upper_bound` is going to find, without proof: ||R^4||_F^(1/4) from a few vectors.

    For the residual R and vectors v of independent normal entries, the mean of ||R^4 v||^2 is ||R^4||_F^2.
    """
    a = in_double(matrix.reshape(-1, *matrix.shape[-2:]))
    tall = a if a.shape[-2] >= a.shape[-1] else a.mH
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(len(a), tall.shape[-1], _VECTORS, dtype=a.dtype, generator=generator)
    for _ in range(4):
        vectors = tall.mH @ (tall @ vectors) - square * vectors
    return float(vectors.abs().square().sum((-2, -1)).max() / _VECTORS) ** (1 / 8)


def filter_gram_defect_upper_bound(weight: Tensor, square: float) -> float:
    """An upper bound of ||J^T J - s I|| (J J^T if wide) for the circular convolution J, at every image size.

    J^T J is the convolution with E_t = sum_u F_u^T F_(u+t), so that ||J^T J - s I|| <= sum_t ||E_t - s [t = 0] I||.
    """
    taps = in_double(weight).permute(2, 3, 0, 1)
    if not bool(torch.isfinite(taps).all()):
        return math.nan
    taps = taps if taps.shape[2] >= taps.shape[3] else taps.mT
    height, width, _, columns = taps.shape
    total = 0.0
    for i in range(height):
        for j in range(1 - width if i else 0, width):
            first = taps[: height - i, max(0, -j) : width - max(0, j)].reshape(-1, columns)
            second = taps[i:, max(0, j) : width - max(0, -j)].reshape(-1, columns)
            product = first.T @ second
            if i == j == 0:
                product.diagonal().sub_(square)
            # The taps t and -t are transposes of each other.
            total += squaring_upper_bound(product[None], 2) * (1 if i == j == 0 else 2)
    # Each of the `number` products errs by gamma ||F||_F^2 at most (Higham, section 3.5).
    number = (2 * height - 1) * (2 * width - 1)
    rounding = gamma(taps[..., 0].numel() + 4) * float(taps.square().sum()) * number
    return (total * (1 + gamma(number)) + rounding * BILLIONS_UP) * FEW_ROUNDINGS_UP


def non_expansive_scale(
    exact: Tensor,
    dtype: torch.dtype,
    defect: Callable[[Tensor, float], float] = gram_defect_upper_bound,
    *,
    stretch: float = 1.0,
) -> tuple[float, tuple[float, float]]:
    """A scale near one with which ``(exact * scale).to(dtype)`` has a gain proven to be <= 1, and its (min, max) gain.

    If ||A^H A - s I|| <= e, the singular values of A lie between sqrt(s - e) and sqrt(s + e). The proof is of the
    rounded tensor, and scaling rounds anew, so it is repeated until s + e <= 1. A tensor too far from orthogonal keeps
    its scale, and the gain returned says what it is. ``defect`` makes e of (tensor, s); what surrounds the tensor
    stretches by at most ``stretch``, and the gain is proven to be <= 1 / stretch.
    """
    most = 1.0 / stretch
    square = most**2
    if defect is gram_defect_upper_bound and exact.numel() >= LARGE**2:
        # A proof costs far more than an estimate that spares the first one, which would fail.
        found = 1.2 * _estimated_defect(exact.to(dtype), square)
        square -= found if found < 0.1 else 0.0
    for attempt in range(5):
        scale = math.sqrt(square)
        e = defect((exact * scale).to(dtype), square)
        if not math.isfinite(e):
            return scale, (math.nan, math.nan)
        largest = sqrt_up(Fraction(square) + Fraction(e))
        if largest <= most or e > 0.5:
            break
        # A tensor that is exactly orthogonal, such as the identity, only shrinks in steps of its precision.
        square = most**2 - 1.01 * e - attempt * torch.finfo(dtype).eps
    return scale, (max(0.0, math.sqrt(max(0.0, square - e)) - 4 * math.ulp(1.0)), largest)


def absolute_norm_upper_bound(weight: Tensor, groups: int = 1) -> float:
    """A bound of || |J| ||: of the convolution with the absolute values of a filter (c_out, c_in / groups, *kernel).

    Its symbol is largest at frequency zero, where it is A = sum_t |W_t|, and ||A||^2 <= ||A||_1 ||A||_inf.
    """
    sums = weight.detach().abs().flatten(2).sum(2) if weight.dim() > 2 else weight.detach().abs()
    blocks = sums.unflatten(0, (groups, -1))
    rows, columns = blocks.sum(2).amax(1), blocks.sum(1).amax(1)
    # Roots before the product, which might underflow or overflow where the bound does not.
    bound = float((rows.sqrt() * columns.sqrt()).max()) * MILLIONS_UP
    return math.nextafter(bound, math.inf) if 0 < bound < 2.0**-1000 else bound
