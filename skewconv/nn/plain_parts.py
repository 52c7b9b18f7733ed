"""Modules of torch.nn that hold given tensors, and the permutations around a map: the parts of plain forms."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from skewconv.nn import plain_layers
from skewconv.nn.protocol import NoPlainFormError

Module = TypeVar("Module", nn.Linear, nn.Conv2d)


def linear_module(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear layer with this matrix (outputs, inputs) and bias, without gradients."""
    new = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    return _holding(new, weight, bias)


def conv_module(weight: Tensor, bias: Tensor | None, padding_mode: str, size: Sequence[int]) -> nn.Conv2d:
    """A convolution that keeps the size (h, w) of images, with this filter (outputs, inputs, k, k) of odd sizes."""
    if padding_mode == "circular":
        weight, _ = once_around(weight, (1, 1), size)
    kernel = (weight.shape[2], weight.shape[3])
    padding = (kernel[0] // 2, kernel[1] // 2)
    options: dict[str, Any] = {"padding": padding, "padding_mode": padding_mode, "bias": bias is not None}
    new = nn.Conv2d(weight.shape[1], weight.shape[0], kernel, **options, device="meta")
    return _holding(new, weight, bias)


def once_around(weight: Tensor, dilation: Sequence[int], size: Sequence[int]) -> tuple[Tensor, tuple[int, int]]:
    """A filter of odd sizes and its dilation, which go around a circular image of this size once at the most.

    PyTorch's own padding goes no further. Taps that meet one pixel are added up. Five on an axis of two pixels::

        taps       a  b  c  d  e               at -2, .. 2
        on pixels  0  1  0  1  0
        become     b + d, a + c + e, nothing   at -1, 0, 1
    """
    steps = [int(step) for step in dilation]
    for axis, (n, step) in enumerate(zip(size, tuple(steps), strict=True)):
        k = weight.shape[2 + axis]
        if step * (k // 2) <= n:
            continue
        places = (step * (torch.arange(k) - k // 2) + n // 2) % n
        shape = list(weight.shape)
        shape[2 + axis] = n + 1 - n % 2
        sums = torch.zeros(shape, dtype=torch.float64, device=weight.device)
        sums.index_add_(2 + axis, places.to(weight.device), weight.detach().double())
        weight, steps[axis] = sums.to(weight.dtype), 1
    return weight, (steps[0], steps[1])


def _holding(module: Module, weight: Tensor, bias: Tensor | None) -> Module:
    module.weight = nn.Parameter(weight.detach().clone(memory_format=torch.contiguous_format), requires_grad=False)
    if bias is not None:
        module.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
    return module


def zero_bias(bias: Tensor | None, channels: int, like: Tensor) -> Tensor:
    """The bias, or zeros for every channel."""
    return like.new_zeros(channels) if bias is None else bias


def downsample_module(layer: nn.Module, stride: Sequence[int]) -> nn.Module:
    """Invertible downsampling of images."""
    if len(stride) != 2:
        raise NoPlainFormError(layer, f"only images with two axes can be downsampled there, and the stride is {stride}")
    if stride[0] == stride[1]:
        return nn.PixelUnshuffle(stride[0])
    return plain_layers.Downsample((stride[0], stride[1]))


def with_downsampling(layer: nn.Module, stride: Sequence[int], module: nn.Module) -> nn.Module:
    """The module after the downsampling of a layer; alone where there is none."""
    return module if max(stride) == 1 else nn.Sequential(downsample_module(layer, stride), module)


def with_upsampling(layer: nn.Module, stride: Sequence[int], module: nn.Module, bias: Tensor | None) -> nn.Module:
    """The module before the upsampling of a layer, and the bias at last."""
    if len(stride) != 2 or stride[0] != stride[1]:
        raise NoPlainFormError(layer, f"only images with two axes of one stride can be upsampled, not {tuple(stride)}")
    shift = [] if bias is None else [plain_layers.Normalize(-bias.view(-1, 1, 1), torch.ones_like(bias).view(-1, 1, 1))]
    return nn.Sequential(module, nn.PixelShuffle(stride[0]), *shift)


def on_channels(module: nn.Module, dim: int, plain: nn.Module) -> nn.Module:
    """The plain form of a layer whose channels come after the batch axis; others are refused."""
    # Counted from the end, the third axis is that of the channels of an image, which is what networks have here.
    if dim not in (1, -3):
        raise NoPlainFormError(module, f"its channels must be on axis 1 of a batch, and dim is {dim}")
    return plain
