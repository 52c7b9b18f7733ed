"""The residual step x - 2 W S relu(W^T x + b) with a convolution W^T, its adjoint W and a diagonal S."""

import torch
from torch import Tensor

from skewconv.choices import PaddingMode
from skewconv.ops.convolution import convolve
from skewconv.ops.filters import odd_filter, transposed


def residual_step(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, padding_mode: PaddingMode = "zeros"
) -> Tensor:
    """One step on images (n, c, h, w), which keep their shape.

    >>> x = torch.tensor([[[[1.0, -1.0]]]])
    >>> residual_step(x, torch.ones(1, 1, 1, 1), torch.ones(()), None)
    tensor([[[[-1., -1.]]]])

    Args:
        x: the images.
        weight: the filter of W^T, (hidden, c, k, k).
        scale: the diagonal of S, (hidden,) or () for a multiple of the identity.
        bias: b, (hidden,) or None.
        padding_mode: "zeros" or "circular".
    """
    hidden = convolve(x, weight, padding_mode=padding_mode)
    if bias is not None:
        hidden = hidden + bias.view(-1, 1, 1)
    step = (2 * scale).to(hidden.dtype)
    moved = torch.relu(hidden) * (step.view(-1, 1, 1) if step.dim() else step)
    return x - convolve(moved, adjoint_filter(weight), padding_mode=padding_mode)


def adjoint_filter(weight: Tensor) -> Tensor:
    """The filter of the adjoint convolution, of odd sizes: (hidden, c, k, k) -> (c, hidden, k', k')."""
    return transposed(odd_filter(weight))
