"""A frozen layer as one matrix."""

import math
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from skewconv.nn.frozen_layers.base import FrozenLinearMap
from skewconv.nn.frozen_layers.proven_gain import gain_of_matrices
from skewconv.nn.plain_parts import linear_module
from skewconv.nn.protocol import Float64Program, Growth, Shape
from skewconv.nn.protocol.products import product_error
from skewconv.nn.protocol.stored import storable
from skewconv.rigor import absolute_norm_upper_bound


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

    def proven_gain(self) -> tuple[float, float]:
        """The singular values of the matrix."""
        low, high = gain_of_matrices(self.weight)
        return low if self.is_injective() else 0.0, high

    def float64_program(self, input_shape: Shape) -> Float64Program:
        """The map as it is stored."""
        return self.stored_program(input_shape)

    def plain_form(self) -> nn.Sequential:
        """One linear layer between flattened images."""
        bias = None if self.bias is None else self.bias.repeat_interleave(math.prod(self.output_shape[1:]))
        return nn.Sequential(nn.Flatten(), linear_module(self.weight, bias), nn.Unflatten(1, self.output_shape))

    def rounding_error(self) -> Growth:
        """Of one matrix product."""
        return product_error(self.weight, absolute_norm_upper_bound(self.weight), self.bias, 1)
