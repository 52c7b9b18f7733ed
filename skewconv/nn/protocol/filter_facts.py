"""What an audit shows of a filter: the norm of its convolution, by every method."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from skewconv.checks import IntOrTuple
from skewconv.choices import PaddingMode
from skewconv.ops.norms import NormMethod, norm_estimate, norm_upper_bound

METHODS: tuple[NormMethod, ...] = ("symbol", "gram", "fantastic-four")


def filter_norms(
    weight: Tensor, size: Sequence[int], padding_mode: str, dilation: IntOrTuple = 1, groups: int = 1
) -> dict[str, Any]:
    """Proven bounds for every image, and the estimate by real normalisation: power iteration at this size.

    Args:
        weight: (c_out, c_in / groups, *kernel).
        size: of the image that the convolution acts on.
    """
    mode: PaddingMode = "circular" if padding_mode == "circular" else "zeros"
    steps = dilation if isinstance(dilation, int) else tuple(dilation)
    return {
        "norm_upper_bounds": {m: norm_upper_bound(weight, m, groups=groups) for m in METHODS},
        "norm_estimate": norm_estimate(weight, tuple(size), mode, dilation=steps, groups=groups),
    }
