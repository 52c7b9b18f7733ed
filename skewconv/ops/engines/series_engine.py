"""The series engine: products with J are convolutions. It serves every request."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from skewconv.choices import PaddingMode
from skewconv.ops.convolution import Geometry
from skewconv.ops.engines import Arranged, Engine, Request
from skewconv.ops.recurrence import JacobianProducts, StepPair, add_channels_, fit_channels, joined_steps
from skewconv.ops.torch_modes import tracing


class SeriesEngine(Engine):
    name = "series"

    def working_dtype(self, request: Request) -> torch.dtype:
        """Half precision where it was asked for, but for float16 on CPUs, which have no gradients in it."""
        return torch.float32 if request.dtype == torch.float16 and request.device == "cpu" else request.dtype

    def arrange(self, x: Tensor, weight: Tensor, request: Request) -> Arranged:
        order = torch.contiguous_format
        if not tracing():
            order = memory_format(request.widths.channels, request.size, request.geometry.padding_mode)
        products = ConvolutionProducts(request.widths, request.geometry, order)
        return Arranged([products.arrange(x)], [weight.contiguous(memory_format=order)], [products], lambda y: y)


def memory_format(channels: int, size: tuple[int, ...], padding_mode: PaddingMode) -> torch.memory_format:
    """Channels last where oneDNN's convolutions are fastest so: on large images, and between 16 and 255 channels.

    With more channels on smaller images the filter outweighs the image, and reordering it costs more than is gained;
    and a circular border is attached faster to images stored channel by channel.
    """
    pixels = torch.Size(size).numel()
    if padding_mode == "circular" or len(size) == 1:
        return torch.contiguous_format
    if len(size) == 3:
        return torch.channels_last_3d if 16 <= channels < 128 and pixels >= 512 else torch.contiguous_format
    last = 16 <= channels < 256 or pixels >= (256 if channels >= 16 else 1024)
    return torch.channels_last if last else torch.contiguous_format


@dataclass(frozen=True)
class ConvolutionProducts(JacobianProducts):
    """States are images (batch, channels, *size), the operator is the filter (m, m / groups, *kernel)."""

    geometry: Geometry
    memory_format: torch.memory_format
    dim = 1

    def arrange(self, state: Tensor) -> Tensor:
        return state.contiguous(memory_format=self.memory_format)

    def joins_steps(self, x: Tensor, operator: Tensor) -> bool:
        """True where the filter is larger than the images: their copy costs less than another pass over it."""
        return operator.numel() > x.numel()

    def product(self, state: Tensor, operator: Tensor, rows: int, back: Tensor | None, factor: float) -> Tensor:
        groups = self.widths.groups
        columns = operator[:, : state.shape[1] // groups]
        image = self.geometry.convolve(state, fit_channels(columns, 0, groups, rows))
        if back is None or factor == 0.0:
            return image
        if torch.is_grad_enabled() or tracing():
            return image + factor * fit_channels(back, 1, groups, rows)
        add_channels_(image, back, factor, 1, groups)
        return image

    def operator_grad(self, pairs: Sequence[StepPair], operator: Tensor, total: Tensor | None) -> Tensor:
        groups = self.widths.groups
        for grad, state, sign in joined_steps(pairs, 1, 0):
            columns = state.shape[1] // groups
            shape = fit_channels(operator[:, :columns], 0, groups, grad.shape[1] // groups)
            step = self.geometry.weight_grad(state, grad, shape)
            if total is None and step.shape == operator.shape:
                total = step if sign > 0 else step.neg_()
                continue
            if total is None:
                total = torch.zeros_like(operator)
            add_channels_(total[:, :columns], step, sign, 0, groups)
        assert total is not None
        return total


SERIES_ENGINE = SeriesEngine()
