"""BCOP filters as LConvNet builds them, and as a BCOP2d does.

Both multiply an orthogonal matrix with filters of two taps, A(s) = P + (I - P) s, P a projector of half the rank and s
a shift by one pixel. Theirs, with H the first matrix and c_in <= c_out, is the transpose of a product and reads

    F = A_n ... A_2 A_1 H^T = H^T (H A_n H^T) ... (H A_1 H^T):

conjugated by H, in reverse order, the projectors are those of a BCOP2d, whose product begins with its orthogonal
matrix. With c_in > c_out theirs is F = H^T A_1 A_2 ... A_n, as it stands. In both cases A_1, A_3, .. shift along the
width and A_2, A_4, .. along the height: the order "lconvnet" of a BCOP2d.
"""

import torch
from torch import Tensor

from skewconv.foreign.matrices import polar_factor
from skewconv.foreign.state import ForeignWeightsError
from skewconv.nn import BCOP2d


def bcop_from_matrices(
    matrices: Tensor, bias: Tensor | None, *, in_channels: int, out_channels: int | None = None, stride: int = 1
) -> BCOP2d:
    """A BCOP2d from the matrices of theirs, each replaced by the orthogonal one that Björck's iteration tends to.

    Args:
        matrices: (2 k - 1, m, m): the orthogonal matrix, then the two projectors of each step.
        bias: (c_out), or None.
        in_channels, stride: of the layer; m = max(in_channels stride^2, c_out).
        out_channels: the length of the bias by default, or m.
    """
    if matrices.dim() != 3 or matrices.shape[0] % 2 == 0 or matrices.shape[1] != matrices.shape[2]:
        raise ForeignWeightsError(f"the matrices have shape {tuple(matrices.shape)}: theirs is (2 k - 1, m, m)")
    kernel, m = (len(matrices) + 1) // 2, matrices.shape[1]
    folded = in_channels * stride**2
    out = out_channels or (m if bias is None else len(bias))
    if max(folded, out) != m:
        raise ForeignWeightsError(
            f"the matrices have {m} rows, but in_channels={in_channels}, stride={stride} and {out} outputs need "
            f"max({folded}, {out}): give the in_channels and the stride that the layer was made with"
        )
    orthogonal = polar_factor(matrices)
    h, bases = orthogonal[0], orthogonal[1:, :, : m // 2]
    if folded <= out:
        bases = (h @ bases).flip(0)
    layer = BCOP2d(in_channels, out, kernel, stride, bias=bias is not None, order="lconvnet", dtype=matrices.dtype)
    with torch.no_grad():
        layer.raw_orthogonal.copy_(h.T[:out])
        if layer.raw_projectors is not None:
            layer.raw_projectors.copy_(bases)
        if bias is not None and layer.bias is not None:
            layer.bias.copy_(bias)
    return layer.eval()


def distance_after(matrices: Tensor, iterations: int) -> float:
    """How far the matrices are from orthogonal after so many of their iterations: max ||W - polar factor||.

    They start from the matrix divided by its norm, found by ten or twenty power steps; here by its true norm.
    """
    w = matrices.detach().to(torch.float64)
    w = w / torch.linalg.matrix_norm(w, 2)[:, None, None]
    for _ in range(iterations):
        w = 1.5 * w - 0.5 * w @ (w.mT @ w)
    return float(torch.linalg.matrix_norm(w - polar_factor(matrices), 2).max())
