"""The proof of a frozen operator's gain: of what is stored, not of what it was rounded from."""

import math

import torch
from torch import Tensor

from skewconv.rigor import factor_down, factor_up, gram_defect_upper_bound, non_expansive_scale


def rounded_with_gain(
    exact: Tensor, dtype: torch.dtype, gain: tuple[float, float], tol: float, injective: bool
) -> tuple[Tensor, tuple[float, float]]:
    """An operator rounded to its dtype, and the proven gain of what was rounded.

    A map that is orthogonal to the tolerance is also shrunk by about one rounding error, so that its gain is proven to
    be at most one; one that is further off (a degree the user fixed) keeps its scale and says its gain.

    Args:
        exact: (*batch, out, in) in double precision.
        dtype: to round to.
        gain: of the polynomial the operator was made from, which says how far off it may be.
        tol: the largest relative change allowed.
        injective: whether nothing is cut off, so that the smallest gain means something.
    """
    off = max(1 - gain[0], gain[1] - 1)
    if off <= tol:
        scale, (low, high) = non_expansive_scale(exact, dtype)
        rounded = (exact * scale).to(dtype)
    else:
        rounded = exact.to(dtype)
        defect = gram_defect_upper_bound(rounded)
        low, high = math.sqrt(max(0.0, 1 - defect)) * factor_down(8), math.sqrt(1 + defect) * factor_up(8)
    return rounded, (low if injective else 0.0, high)
