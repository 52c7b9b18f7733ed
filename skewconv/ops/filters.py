"""Filters with skew-symmetric Jacobians: Theorems 1 and 2 (2d), 6 and 7 (3d), real and complex."""

import torch
import torch.nn.functional as F
from torch import Tensor

from skewconv.checks import check_filter, check_square
from skewconv.errors import NotSkewError

# Subtracting a filter from its transpose is exact, so a filter made by skew_filter is skew to the last bit; the
# allowance is for filters that come from elsewhere, and for the finite differences of gradcheck.
_SKEW_TOLERANCE = {torch.float16: 1e-3, torch.bfloat16: 1e-2}
_SKEW_TOLERANCE_DEFAULT = 1e-5


def transpose_filter(weight: Tensor, groups: int = 1) -> Tensor:
    """Swap the channels, flip every spatial axis, conjugate: the filter whose Jacobian is J^H (Theorems 1 and 6).

    >>> import torch
    >>> transpose_filter(torch.tensor([[[1.0, 2.0, 3.0]]]))
    tensor([[[3., 2., 1.]]])

    (c_out, c_in / groups, *kernel) -> (c_in, c_out / groups, *kernel), real or complex, one to three spatial axes; each
    group is transposed by itself.
    """
    check_filter(weight, groups=groups)
    return transposed(weight, groups)


def transposed(weight: Tensor, groups: int = 1) -> Tensor:
    """:func:`transpose_filter` without checks."""
    rows, columns, *kernel = weight.shape[0] // groups, *weight.shape[1:]
    blocks = weight.reshape(groups, rows, columns, *kernel).transpose(1, 2).reshape(-1, rows, *kernel)
    return blocks.flip(tuple(range(2, weight.dim()))).conj().resolve_conj()


def odd_filter(weight: Tensor) -> Tensor:
    """Zero-pad each even kernel size to odd, in front, as ``padding="same"`` does (Section 4 of the paper)."""
    pad: list[int] = []
    for size in reversed(weight.shape[2:]):
        pad += [1 - size % 2, 0]
    return F.pad(weight, pad) if any(pad) else weight


def skew_filter(weight: Tensor, groups: int = 1) -> Tensor:
    """L = M - transpose(M): every filter with a skew-symmetric (skew-Hermitian) Jacobian is of this form (Theorem 2).

    >>> import torch
    >>> skew_filter(torch.tensor([[[1.0, 2.0, 4.0]]]))
    tensor([[[-3.,  0.,  3.]]])

    M is (m, m / groups, *kernel), of which even kernel sizes are zero-padded to odd first; L is skew to the last bit.
    """
    check_square(weight, groups=groups)
    odd = odd_filter(weight)
    return odd - transposed(odd, groups)


def split_filter(skew: Tensor, groups: int = 1) -> Tensor:
    """Theorem 2 read backwards: an M with skew_filter(M) == skew, to the last bit.

    M is the free half of the filter, which has the same shape: the taps after the centre, the part of the centre tap
    below its diagonal, and half of that diagonal (which is zero for real filters).

    >>> import torch
    >>> split_filter(torch.tensor([[[-3.0, 0.0, 3.0]]]))
    tensor([[[0., 0., 3.]]])
    """
    check_skew(skew, groups=groups)
    channels = skew.shape[1]
    taps = skew.reshape(groups, channels, channels, -1)
    centre = taps.shape[-1] // 2
    free = torch.zeros_like(taps)
    free[..., centre + 1 :] = taps[..., centre + 1 :]
    middle = taps[..., centre]
    free[..., centre] = middle.tril(-1) + torch.diag_embed(middle.diagonal(dim1=-2, dim2=-1) / 2)
    return free.reshape(skew.shape)


def skew_defect(weight: Tensor, groups: int = 1) -> float:
    """max |L + transpose(L)| / max |L|: zero for a skew filter."""
    largest = float(weight.detach().abs().max())
    if largest == 0.0:
        return 0.0
    return float((weight.detach() + transposed(weight.detach(), groups)).abs().max()) / largest


def check_skew(weight: Tensor, name: str = "skew", *, groups: int = 1) -> None:
    """Refuse a filter that is not skew to 1e-5 of its largest entry (1e-3 in float16, 1e-2 in bfloat16)."""
    check_square(weight, name, groups=groups)
    if any(size % 2 == 0 for size in weight.shape[2:]):
        raise NotSkewError(
            f"{name} has kernel sizes {tuple(weight.shape[2:])}; a skew filter has odd sizes: "
            "make it with skew_filter(M)"
        )
    if torch.compiler.is_compiling():
        return
    defect, allowed = skew_defect(weight, groups), _SKEW_TOLERANCE.get(weight.dtype, _SKEW_TOLERANCE_DEFAULT)
    if defect > allowed:
        raise NotSkewError(
            f"{name} is not skew: max |L + transpose(L)| is {defect:.2g} of its largest entry, allowed {allowed:.0g}; "
            "make it with skew_filter(M)"
        )
