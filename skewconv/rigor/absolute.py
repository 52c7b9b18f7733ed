"""The norm of a convolution with absolute values: by how much the rounding errors of its products can be stretched."""

import math

from torch import Tensor

from skewconv.rigor.directed import MILLIONS_UP


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
