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
from skewconv.rigor import BILLIONS_UP, FEW_ROUNDINGS_UP, MILLIONS_UP, gamma, in_double

# What products lose by underflow, far more than 2^-1074 for each, and far less than any filter that is not zero.
_UNDERFLOW = 2.0**-1000
_POWER_STEPS = 60


def filter_gram(weight: Tensor) -> Tensor:
    """G: (c_out, c_in, h, w) -> (c_in, c_in, 2 h - 1, 2 w - 1)."""
    columns = weight.transpose(0, 1)
    return F.conv2d(columns, columns, padding=(weight.shape[2] - 1, weight.shape[3] - 1)).transpose(0, 1)


def gram_row_sums(weight: Tensor, q: Tensor | None = None) -> Tensor:
    """r, (c_in,), of a filter (c_out, c_in, h, w), differentiable; the weights q, (c_in,), are ones by default."""
    sums = filter_gram(weight).abs().sum((2, 3))
    return sums.sum(1) if q is None else (sums @ q) / q


def gram_row_sums_upper_bound(weight: Tensor, q: Tensor | None = None) -> Tensor:
    """Numbers >= r, (c_in,), in float64 on the CPU; rounding and underflow included, q taken as it is."""
    sums = _absolute_gram_upper_bound(weight)
    return _row_sums(sums, torch.ones(len(sums), dtype=torch.float64) if q is None else in_double(q))


def scaled_gram_upper_bound(weight: Tensor, scale: Tensor | None = None) -> float:
    """A number >= ||S^(1/2) J^T J S^(1/2)||, S diagonal: the least max_i s_i r_i that is found over some q.

    The best q is the leading eigenvector of a matrix without negative entries; power steps on it cannot fail, as any
    positive q gives a bound. The scale is the diagonal of S, (c_in,), not negative; ones by default.
    """
    sums = _absolute_gram_upper_bound(weight)
    s = torch.ones(len(sums), dtype=torch.float64) if scale is None else in_double(scale).expand(len(sums))
    q, best = torch.ones_like(s), torch.inf
    for _ in range(_POWER_STEPS):
        best = min(best, float((s * _row_sums(sums, q)).max()) * FEW_ROUNDINGS_UP)
        # Half of the old vector keeps every entry positive, and the steps from swinging.
        moved = s * (sums @ q)
        q = q / q.max() + moved / moved.max().clamp_min(torch.finfo(torch.float64).tiny)
    return best


def _absolute_gram_upper_bound(weight: Tensor) -> Tensor:
    """Numbers >= sum_t |G_t|, (c_in, c_in)."""
    check_filter(weight)
    f = in_double(weight)
    size = f.abs().flatten(2).sum(2)
    # |fl(G_t) - G_t| <= gamma_n sum_u |F_u|^T |F_(u+t)| entry by entry (Higham, section 3.5), in all |F|^T |F|.
    rounding = gamma(f[:, 0].numel() + 4) * (size.T @ size)
    return (filter_gram(f).abs().sum((2, 3)) + rounding * BILLIONS_UP + _UNDERFLOW) * MILLIONS_UP


def _row_sums(sums: Tensor, q: Tensor) -> Tensor:
    return (sums @ q) / q * MILLIONS_UP
