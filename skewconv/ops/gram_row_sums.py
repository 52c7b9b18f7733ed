"""Absolute row sums of the Gram operator J^T J of a convolution: a diagonal that dominates it, at every image size.

J^T J is a convolution with the filter G_t = sum_u F_u^T F_(u+t). With r_i = sum_(j, t) |G_t[i, j]| q_j / q_i for any
positive q, diag(r) - J^T J is similar to a matrix with dominant diagonal, so that J^T J <= diag(r): without a border,
with zeros past it (which only cut J), and around a torus of any size (on which entries add up, |a + b| <= |a| + |b|).

Reference: Prach & Lampert, "Almost-orthogonal layers for efficient general-purpose Lipschitz networks", 2022; with q:
Araujo et al., "A unified algebraic perspective on Lipschitz neural networks", 2023.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from skewconv.checks import check_filter
from skewconv.rigor import BILLIONS_UP, gamma, in_double

# What products lose by underflow, far more than 2^-1074 for each, and far less than any filter that is not zero.
_UNDERFLOW = 2.0**-1000


def filter_gram(weight: Tensor) -> Tensor:
    """G: (c_out, c_in, h, w) -> (c_in, c_in, 2 h - 1, 2 w - 1).

    >>> filter_gram(torch.tensor([[[[1.0, 2.0]]]]))
    tensor([[[[2., 5., 2.]]]])
    """
    columns = weight.transpose(0, 1)
    return F.conv2d(columns, columns, padding=(weight.shape[2] - 1, weight.shape[3] - 1))


def gram_row_sums(weight: Tensor, q: Tensor | None = None) -> Tensor:
    """r, (c_in,), of a filter (c_out, c_in, h, w): to rounding, and differentiable.

    >>> gram_row_sums(torch.tensor([[[[1.0, -2.0]]]]))
    tensor([9.])

    Args:
        weight: F.
        q: (c_in,), positive; ones by default.
    """
    sums = filter_gram(weight).abs().sum((2, 3))
    return sums.sum(1) if q is None else (sums @ q) / q


def gram_row_sums_upper_bound(weight: Tensor, q: Tensor | None = None) -> Tensor:
    """Numbers >= r, (c_in,), in float64 on the CPU; rounding and underflow included.

    Args:
        weight: F, (c_out, c_in, h, w), finite.
        q: (c_in,), positive, taken as it is; ones by default.
    """
    check_filter(weight)
    f = in_double(weight)
    q = torch.ones(f.shape[1], dtype=torch.float64) if q is None else in_double(q)
    size = f.abs().flatten(2).sum(2)
    # |fl(G_t) - G_t| <= gamma_n sum_u |F_u|^T |F_(u+t)| entry by entry (Higham, section 3.5), in all |F|^T |F|.
    rounding = gamma(f[:, 0].numel() + 4) * (size.T @ size)
    sums = filter_gram(f).abs().sum((2, 3)) + rounding * BILLIONS_UP + _UNDERFLOW
    return (sums @ q) / q * BILLIONS_UP
