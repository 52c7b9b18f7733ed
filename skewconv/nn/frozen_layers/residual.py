"""A frozen layer as one residual step."""

from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from skewconv.choices import PaddingMode
from skewconv.errors import NotFiniteError
from skewconv.nn import plain_layers
from skewconv.nn.frozen_layers.base import FrozenLayer
from skewconv.nn.plain_parts import conv_module, with_downsampling
from skewconv.nn.protocol import Float64Program, Shape
from skewconv.nn.protocol.residual_program import fitted, residual_program
from skewconv.nn.protocol.stored import storable
from skewconv.ops.filters import odd_filter
from skewconv.ops.gram_row_sums import scaled_gram_upper_bound
from skewconv.ops.norms import norm_upper_bound
from skewconv.ops.residual import adjoint_filter, residual_step
from skewconv.rigor import round_up, sqrt_up


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
        stride: int,
        padding_mode: PaddingMode,
        bias: Tensor | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(bias=bias, **settings)
        self.stride, self.padding_mode = stride, padding_mode
        for name, tensor in (("weight", weight), ("scale", scale)):
            self.register_buffer(name, tensor.detach().clone(memory_format=torch.contiguous_format))

    @property
    def bias_entries(self) -> int:
        """One for each hidden channel."""
        return len(self.weight)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "stride": self.stride, "padding_mode": self.padding_mode}

    def map_batch(self, x: Tensor) -> Tensor:
        z = fitted(x, self.stride, self.weight.shape[1])
        return residual_step(z, self.weight, self.scale, self.bias, self.padding_mode)[:, : self.output_shape[0]]

    def plain_form(self) -> nn.Module:
        """The same two convolutions, behind the downsampling."""
        there = conv_module(odd_filter(self.weight), self.bias, self.padding_mode, self.output_shape[1:])
        back = conv_module(adjoint_filter(self.weight), None, self.padding_mode, self.output_shape[1:])
        twice = (2 * self.scale).reshape(-1, 1, 1)
        step = plain_layers.ResidualStep(there, back, twice, self.output_shape[0])
        return with_downsampling(self, (self.stride, self.stride), step)

    def proven_gain(self) -> tuple[float, float]:
        """(0, max(1, 2 m^2 - 1)) with m^2 >= ||W S^(1/2)||^2: the Jacobians are between I - 2 m^2 and I."""
        return 0.0, max(1.0, round_up(2 * self._square() - 1))

    def _square(self) -> Fraction:
        """m^2: from the norm of the filter and the largest scale (CPL), or by its row sums (SLL)."""
        if not bool(((self.scale >= 0) & torch.isfinite(self.scale)).all()):
            raise NotFiniteError(
                "the scale of a FrozenResidual must be finite and not negative; freeze the model again"
            )
        largest, norm = Fraction(float(self.scale.max())), Fraction(norm_upper_bound(self.weight))
        rows = Fraction(scaled_gram_upper_bound(self.weight.transpose(0, 1), self.scale))
        return min(largest * norm**2, rows)

    def float64_program(self, input_shape: Shape) -> Float64Program:
        """The step as it is stored."""
        options: dict[str, Any] = {"stride": self.stride, "padding_mode": self.padding_mode}
        options |= {"lipschitz": self.proven_gain()[1], "norm": sqrt_up(self._square())}
        program = residual_program(self.weight, self.scale, self.bias, input_shape, self.output_shape[0], **options)
        return self.of_stated_shapes(program, input_shape)
