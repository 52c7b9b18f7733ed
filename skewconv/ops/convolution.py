"""The convolution L * x of the paper: stride one, size preserving, zero or circular padding."""

import torch.nn.functional as F
from torch import Tensor

from skewconv.errors import ShapeError
from skewconv.ops.checks import IntOrTuple, PaddingMode, per_axis
from skewconv.ops.filters import odd_filter

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def convolve(
    x: Tensor,
    weight: Tensor,
    *,
    padding_mode: PaddingMode = "zeros",
    dilation: IntOrTuple = 1,
    groups: int = 1,
) -> Tensor:
    """y[i] = sum_t weight[t] x[i + t], with t running over the taps around the centre.

    Args:
        x: (batch, c_in, *size).
        weight: (c_out, c_in / groups, *kernel); even kernels act as with ``padding="same"``.

    Returns:
        (batch, c_out, *size).
    """
    weight = odd_filter(weight)
    axes = weight.dim() - 2
    steps = per_axis(dilation, axes, "dilation")
    reach = tuple(d * (k // 2) for d, k in zip(steps, weight.shape[2:], strict=True))
    if padding_mode == "zeros":
        return _CONV[axes](x, weight, padding=reach, dilation=steps, groups=groups)
    check_wrap(reach, tuple(x.shape[2:]))
    pad = [r for reach_of_axis in reversed(reach) for r in (reach_of_axis, reach_of_axis)]
    padded = F.pad(x, pad, mode="circular") if any(pad) else x
    return _CONV[axes](padded, weight, dilation=steps, groups=groups)


def check_wrap(reach: tuple[int, ...], size: tuple[int, ...]) -> None:
    """Refuse a circular convolution that would wrap around the image more than once."""
    if any(r > n for r, n in zip(reach, size, strict=True)):
        raise ShapeError(
            f"the kernel reaches {reach} pixels from its centre but the circular image is only {size} large, so it "
            "would wrap more than once; use a smaller kernel or dilation, a larger image, or padding_mode='zeros'"
        )
