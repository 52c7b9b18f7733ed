"""Permutations of entries: invertible downsampling (Section 6.3 of the paper) and the sorted pairs of MaxMin."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from skewconv.checks import IntOrTuple
from skewconv.errors import ArgumentError, ShapeError
from skewconv.ops.torch_modes import elementwise, tracing


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


def sorted_halves(x: Tensor, dim: int) -> Tensor:
    """The larger of each pair of channels (i, i + half) first, then the smaller: the same shape as x.

    Its derivative is a permutation, also where both are equal.
    """
    wants_gradient = torch.is_grad_enabled() and x.requires_grad
    if tracing() or not wants_gradient or type(x) is not Tensor:
        a, b = x.chunk(2, dim)
        return torch.cat([torch.maximum(a, b), torch.minimum(a, b)], dim)
    result: Tensor = _SortedHalves.apply(x, dim)  # type: ignore[no-untyped-call]
    return result


class _SortedHalves(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        ctx.dim = dim
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        (a, b), y = x.chunk(2, dim), torch.empty_like(x)
        larger, smaller = y.chunk(2, dim)
        # Written where they belong, and not copied there.
        torch.maximum(a, b, out=larger)
        torch.minimum(a, b, out=smaller)
        return y

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: Any) -> Tensor:
        return _permuted(tangent, ctx.saved_tensors[0], ctx.dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _permuted(grads[0], x, ctx.dim), None
        wide, grad = elementwise(x), elementwise(grads[0])
        (a, b), (p, q), result = wide.chunk(2, ctx.dim), grad.chunk(2, ctx.dim), torch.empty_like(wide)
        first, second = result.chunk(2, ctx.dim)
        # As numbers, 0 and 1, for which lerp gives one end or the other to the bit: processors do this many values at a
        # time, and torch.where takes them one by one.
        is_first_larger = torch.gt(a, b, out=torch.empty_like(a))
        torch.lerp(q, p, is_first_larger, out=first)
        torch.lerp(p, q, is_first_larger, out=second)
        return result.to(x.dtype), None


def _permuted(values: Tensor, x: Tensor, dim: int) -> Tensor:
    """The permutation of the pairs that sorts x, or its transpose, which is the same, on other values."""
    (a, b), (p, q) = x.chunk(2, dim), values.chunk(2, dim)
    return torch.cat([torch.where(a > b, p, q), torch.where(a > b, q, p)], dim)
