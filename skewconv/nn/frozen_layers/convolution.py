"""A frozen layer as one convolution."""

from typing import Any

import torch
from torch import Tensor

from skewconv.checks import PaddingMode
from skewconv.nn.frozen_layers.base import FrozenLinearMap
from skewconv.nn.protocol.stored import storable
from skewconv.ops.convolution import Geometry
from skewconv.ops.downsample import invertible_downsample
from skewconv.ops.filters import odd_filter


@storable()
class FrozenConv(FrozenLinearMap):
    """One convolution of stride one, after the downsampling: the filter as it was.

    Args:
        weight: (channels out, channels in * prod(stride), k, k); an even k is padded to odd.
        stride: of the downsampling before it.
        padding_mode: "circular" or "zeros".
    """

    weight: Tensor

    def __init__(
        self,
        *,
        weight: Tensor,
        stride: tuple[int, ...],
        padding_mode: PaddingMode = "circular",
        bias: Tensor | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(bias=bias, **settings)
        self.stride = tuple(stride)
        self.geometry = Geometry.of(tuple(weight.shape[2:]), padding_mode, 1, 1)
        filter_ = odd_filter(weight.detach())
        self.register_buffer("weight", filter_.clone(memory_format=torch.contiguous_format))

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "stride": self.stride, "padding_mode": self.geometry.padding_mode}

    def linear(self, x: Tensor) -> Tensor:
        return self.geometry.convolve(invertible_downsample(x, self.stride) if max(self.stride) > 1 else x, self.weight)
