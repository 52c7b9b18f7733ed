"""A frozen layer as one residual step."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from skewconv.checks import PaddingMode
from skewconv.nn.frozen_layers.base import FrozenLayer
from skewconv.nn.protocol.stored import storable
from skewconv.ops.downsample import invertible_downsample
from skewconv.ops.residual import residual_step


@storable()
class FrozenResidual(FrozenLayer):
    """x - 2 W S relu(W^T x + b) after the downsampling, channels filled up with zeros before and cut off after.

    Args:
        weight: the filter of W^T, (hidden, channels, k, k).
        scale: the diagonal of S, (hidden,) or ().
        stride: of the downsampling before it.
        padding_mode: "zeros" or "circular".
    """

    weight: Tensor
    scale: Tensor

    def __init__(
        self,
        *,
        weight: Tensor,
        scale: Tensor,
        stride: tuple[int, ...],
        padding_mode: PaddingMode,
        bias: Tensor | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(bias=bias, **settings)
        self.stride, self.padding_mode = tuple(stride), padding_mode
        for name, tensor in (("weight", weight), ("scale", scale)):
            self.register_buffer(name, tensor.detach().clone(memory_format=torch.contiguous_format))

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "stride": self.stride, "padding_mode": self.padding_mode}

    def map_batch(self, x: Tensor) -> Tensor:
        z = invertible_downsample(x, self.stride) if max(self.stride) > 1 else x
        missing = self.weight.shape[1] - z.shape[1]
        z = F.pad(z, (0, 0, 0, 0, 0, missing)) if missing else z
        return residual_step(z, self.weight, self.scale, self.bias, self.padding_mode)[:, : self.output_shape[0]]
