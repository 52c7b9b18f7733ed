"""Products with J as convolutions, which suit every image and every filter."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from skewconv.ops.convolution import Geometry
from skewconv.ops.engines.channels import ChannelWidths, add_channels_, fit_channels, narrow_channels
from skewconv.ops.engines.jacobian_products import StepPair, joined_steps
from skewconv.ops.torch_modes import tracing


@dataclass(frozen=True)
class ConvolutionProducts:
    """States are images (batch, channels, *size), the operator is the filter (m, m / groups, *kernel)."""

    geometry: Geometry
    widths: ChannelWidths
    memory_format: torch.memory_format
    joins_steps: bool = False
    dim: int = 1

    def adjoint(self) -> "ConvolutionProducts":
        """The same products on the channels of the adjoint map."""
        return replace(self, widths=self.widths.adjoint())

    def arrange(self, state: Tensor) -> Tensor:
        """The state in the memory format chosen."""
        return state.contiguous(memory_format=self.memory_format)

    def product(self, state: Tensor, operator: Tensor, rows: int, back: Tensor | None, factor: float) -> Tensor:
        """One convolution with the channels that matter."""
        groups = self.widths.groups
        columns = operator[:, : state.shape[1] // groups]
        image = self.geometry.convolve(state, narrow_channels(columns, 0, groups, rows))
        if back is None or factor == 0.0:
            return image
        if torch.is_grad_enabled() or tracing():
            return image + factor * fit_channels(back, 1, groups, rows)
        add_channels_(image, back, factor, 1, groups)
        return image

    def operator_grad(self, pairs: Sequence[StepPair], operator: Tensor, total: Tensor | None) -> Tensor:
        """One call for all the steps given that read and write the same channels."""
        groups = self.widths.groups
        for grad, state, sign in joined_steps(pairs, 1, 0):
            columns = state.shape[1] // groups
            shape = narrow_channels(operator[:, :columns], 0, groups, grad.shape[1] // groups)
            step = self.geometry.weight_grad(state, grad, shape)
            if total is None and step.shape == operator.shape:
                total = step if sign > 0 else step.neg_()
                continue
            if total is None:
                total = torch.zeros_like(operator)
            add_channels_(total[:, :columns], step, sign, 0, groups)
        assert total is not None
        return total
