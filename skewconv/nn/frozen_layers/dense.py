"""A frozen layer as one matrix."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from skewconv.nn.frozen_layers.base import FrozenLinearMap
from skewconv.nn.protocol.stored import storable


@storable()
class FrozenDense(FrozenLinearMap):
    """The matrix of the map: one product for everything.

    Args:
        weight: (entries out, entries in).
    """

    weight: Tensor

    def __init__(self, *, weight: Tensor, bias: Tensor | None = None, **settings: Any) -> None:
        super().__init__(bias=bias, **settings)
        self.register_buffer("weight", weight.detach().clone())

    def linear(self, x: Tensor) -> Tensor:
        return F.linear(x.flatten(1), self.weight).unflatten(1, self.output_shape)
