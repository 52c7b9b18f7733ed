"""Products with J as one matrix product with the filter as it lies in memory, for filters that outweigh the images.

A library's convolution first copies the filter into an order of its own, at each call; a copy of tens of megabytes
costs more than the products with few images. Here the images are copied instead, what one tap sees below the last. For
one channel a b c d of an axis, zero padding and three taps::

    filter  [l m r]   times   columns   0 a b c     gives   [l 0 + m a + r b,  l a + m b + r c,  ...]
                                        a b c d
                                        b c d 0
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from skewconv.ops.convolution import Geometry
from skewconv.ops.engines.channels import ChannelWidths, fit_channels
from skewconv.ops.engines.jacobian_products import StepPair, joined_steps
from skewconv.ops.engines.matrix_products import accumulate


@dataclass(frozen=True)
class ColumnProducts:
    """States are (groups, channels, batch, *size), the operator is the filter as (groups, rows, columns * taps)."""

    geometry: Geometry
    widths: ChannelWidths
    joins_steps: bool = True
    dim: int = 1

    def adjoint(self) -> "ColumnProducts":
        """The same products on the channels of the adjoint map."""
        return replace(self, widths=self.widths.adjoint())

    def arrange(self, state: Tensor) -> Tensor:
        """Channel by channel, so that the images of one are a row."""
        return state.contiguous()

    def product(self, state: Tensor, operator: Tensor, rows: int, back: Tensor | None, factor: float) -> Tensor:
        """The filter times the columns, with factor * back in the same call."""
        columns = self._columns(state)
        filters = operator[:, :rows, : columns.shape[1]]
        if back is None or factor == 0.0:
            image = torch.bmm(filters, columns)
        else:
            image = torch.baddbmm(fit_channels(back, 1, 1, rows).flatten(2), filters, columns, beta=factor)
        return image.view(*image.shape[:2], *state.shape[2:])

    def operator_grad(self, pairs: Sequence[StepPair], operator: Tensor, total: Tensor | None) -> Tensor:
        """lambda times the columns of u, one product for all the steps that read and write the same channels."""
        for grad, state, sign in joined_steps(pairs, 1, 2):
            block = torch.bmm(grad.flatten(2), self._columns(state).mT)
            total = accumulate(total, block, operator, sign)
        assert total is not None
        return total

    def _columns(self, state: Tensor) -> Tensor:
        """(groups, c, batch, *size) -> (groups, c * taps, batch * pixels): what each tap sees from each pixel."""
        geometry, size = self.geometry, state.shape[3:]
        padded = geometry.pad(state.flatten(0, 1)).unflatten(0, state.shape[:2])
        outer, spatial = padded.stride()[:3], padded.stride()[3:]
        steps = [d * s for d, s in zip(geometry.dilation, spatial, strict=True)]
        shape = (*state.shape[:2], *geometry.kernel, state.shape[2], *size)
        views = padded.as_strided(shape, (*outer[:2], *steps, outer[2], *spatial))
        taps, pixels = torch.Size(geometry.kernel).numel(), torch.Size(state.shape[2:]).numel()
        return views.reshape(state.shape[0], state.shape[1] * taps, pixels)
