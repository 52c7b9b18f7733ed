"""Invertible downsampling: pixels become channels, nothing is lost (Section 6.3 of the paper)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from skewconv.checks import IntOrTuple
from skewconv.errors import ArgumentError, ShapeError


def invertible_downsample(x: Tensor, stride: IntOrTuple) -> Tensor:
    """(..., c, n_1, n_2, ...) -> (..., c s_1 s_2 ..., n_1 / s_1, n_2 / s_2, ...): a permutation of the entries.

    The channels come in the order of ``F.pixel_unshuffle``: input channel first, then the offset along each axis.
    The batch axis may be missing if stride is a tuple, whose length is then the number of spatial axes.
    """
    steps, lead, channels, size = _parts(x, stride)
    if any(n % s for n, s in zip(size, steps, strict=True)):
        raise ShapeError(
            f"the image size {tuple(size)} is not divisible by the stride {steps}; crop or pad the image, or change "
            "the stride"
        )
    small = [n // s for n, s in zip(size, steps, strict=True)]
    split = [part for n, s in zip(small, steps, strict=True) for part in (n, s)]
    first, axes = len(lead) + 1, len(steps)
    order = [*range(first), *range(first + 1, first + 2 * axes, 2), *range(first, first + 2 * axes, 2)]
    return x.reshape(*lead, channels, *split).permute(order).reshape(*lead, channels * math.prod(steps), *small)


def invertible_upsample(y: Tensor, stride: IntOrTuple) -> Tensor:
    """The inverse of `invertible_downsample`, which is also its adjoint."""
    steps, lead, channels, size = _parts(y, stride)
    folded = math.prod(steps)
    if channels % folded:
        raise ShapeError(
            f"{channels} channels cannot be undone with the stride {steps}: their number must be divisible by {folded}"
        )
    first, axes = len(lead) + 1, len(steps)
    order = [*range(first), *(first + axis + part for axis in range(axes) for part in (axes, 0))]
    large = [n * s for n, s in zip(size, steps, strict=True)]
    return y.reshape(*lead, channels // folded, *steps, *size).permute(order).reshape(*lead, channels // folded, *large)


def _parts(x: Tensor, stride: IntOrTuple) -> tuple[tuple[int, ...], torch.Size, int, torch.Size]:
    """One stride for each spatial axis, the batch's shape, the number of channels and the spatial sizes of x."""
    check_stride(stride)
    values = (stride,) * (x.dim() - 2) if isinstance(stride, int) else tuple(stride)
    batched = x.dim() == len(values) + 2
    if not 1 <= len(values) <= 3 or not (batched or x.dim() == len(values) + 1):
        raise ShapeError(
            f"stride {stride!r} does not fit an input of shape {tuple(x.shape)}: expected (batch, c, *size) with 1 to "
            "3 spatial axes, or (c, *size) and a tuple with one stride for each axis"
        )
    axes = len(values)
    return values, x.shape[: -axes - 1], x.shape[-axes - 1], x.shape[-axes:]


def check_stride(stride: IntOrTuple) -> None:
    values = tuple(stride) if isinstance(stride, Sequence) else (stride,)
    if not values or any(type(s) is not int or s < 1 for s in values):
        raise ArgumentError(f"stride must be an integer >= 1, or one for each spatial axis, got {stride!r}")
