"""(max(a, b), min(a, b)) of the two halves of the channels, with one pass there and one back."""

from typing import Any

import torch
from torch import Tensor

from skewconv.ops.torch_modes import tracing


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
        (a, b), (p, q), result = x.chunk(2, ctx.dim), grads[0].chunk(2, ctx.dim), torch.empty_like(x)
        first, second = result.chunk(2, ctx.dim)
        # As numbers, 0 and 1, for which lerp gives one end or the other to the bit: processors do this many values at a
        # time, and torch.where takes them one by one.
        is_first_larger = torch.gt(a, b, out=torch.empty_like(a))
        torch.lerp(q, p, is_first_larger, out=first)
        torch.lerp(p, q, is_first_larger, out=second)
        return result, None


def _permuted(values: Tensor, x: Tensor, dim: int) -> Tensor:
    """The permutation of the pairs that sorts x, or its transpose, which is the same, on other values."""
    (a, b), (p, q) = x.chunk(2, dim), values.chunk(2, dim)
    return torch.cat([torch.where(a > b, p, q), torch.where(a > b, q, p)], dim)
