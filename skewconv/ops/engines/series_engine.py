"""The series engine: products with J are convolutions, or one product with a filter too large to be copied.

It serves every request.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from skewconv.choices import PaddingMode
from skewconv.ops.convolution import Geometry
from skewconv.ops.engines.abstract_engine import Application, Arranged, Engine
from skewconv.ops.recurrence import (
    ChannelWidths,
    JacobianProducts,
    StepPair,
    accumulate,
    add_channels_,
    fit_channels,
    joined_steps,
    narrow_channels,
)
from skewconv.ops.torch_modes import tracing

# PyTorch leaves a single image of so few elements to a simpler convolution, which takes the filter as it is.
_SMALL_IMAGE = 20480
# Filters of more elements (in a group) than the first number are taken as they are with pixels up to the second. Beyond
# 32 MiB the system hands out the memory of every copy page by page; and oneDNN passes over borders of zeros.
COLUMN_LIMITS = {"zeros": ((2**23, 512), (2**21, 16)), "circular": ((2**23, 512), (2**21, 64))}


class SeriesEngine(Engine):
    """The recurrence of the series, by convolutions of the images."""

    name = "series"

    def working_dtype(self, dtype: torch.dtype, device: str) -> torch.dtype:
        """Half precision where it was asked for, but for float16 on CPUs, which have no gradients in it."""
        return torch.float32 if dtype == torch.float16 and device == "cpu" else dtype

    def arrange(self, x: Tensor, weight: Tensor, task: Application) -> Arranged:
        """As convolutions want them, or as columns of pixels."""
        geometry, widths = task.geometry, task.widths
        traced, size = tracing(), tuple(x.shape[2:])
        if not traced and uses_columns(len(x), size, geometry, widths, x.dtype, x.device.type):
            return _in_columns(weight, task)
        order = torch.contiguous_format if traced else memory_format(widths.channels, size, geometry.padding_mode)
        products = ConvolutionProducts(widths, geometry, order)
        return Arranged(products.arrange, weight.contiguous(memory_format=order), products, lambda y: y)


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


def uses_columns(
    batch: int, size: tuple[int, ...], geometry: Geometry, widths: ChannelWidths, dtype: torch.dtype, device: str
) -> bool:
    """True where the images are copied rather than the filter; processors take products of half precision less well."""
    if device != "cpu" or dtype not in (torch.float32, torch.float64):
        return False
    elements = torch.Size(geometry.kernel).numel() * widths.channels**2
    pixels = batch * torch.Size(size).numel()
    limits = COLUMN_LIMITS[geometry.padding_mode]
    most = next((pixels for least, pixels in limits if elements > least), 0)
    quick = elements <= limits[0][0] and _is_quick(batch, size, geometry, widths)
    return pixels <= most and not quick


def _is_quick(batch: int, size: tuple[int, ...], geometry: Geometry, widths: ChannelWidths) -> bool:
    """True where PyTorch convolves without copying the filter first."""
    border = geometry.reach if geometry.padding_mode == "circular" else (0,) * geometry.axes
    padded = torch.Size(n + 2 * r for n, r in zip(size, border, strict=True)).numel()
    return batch <= 1 and geometry.axes < 3 and widths.groups * widths.channels * padded <= _SMALL_IMAGE


@dataclass(frozen=True)
class ConvolutionProducts(JacobianProducts):
    """States are images (batch, channels, *size), the operator is the filter (m, m / groups, *kernel)."""

    geometry: Geometry
    memory_format: torch.memory_format
    dim = 1

    def arrange(self, state: Tensor) -> Tensor:
        """The state in the memory format chosen."""
        return state.contiguous(memory_format=self.memory_format)

    def joins_steps(self, x: Tensor, operator: Tensor) -> bool:
        """True where the filter is larger than the images: their copy costs less than another pass over it."""
        return operator.numel() > x.numel()

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


def _in_columns(weight: Tensor, task: Application) -> Arranged:
    widths = task.widths
    return Arranged(
        lambda images: images.unflatten(1, (widths.groups, -1)).movedim(0, 2).contiguous(),
        weight.flatten(1).unflatten(0, (widths.groups, -1)),
        ColumnProducts(widths.of_one_group(), task.geometry),
        lambda y: y.movedim(2, 0).flatten(1, 2),
    )


@dataclass(frozen=True)
class ColumnProducts(JacobianProducts):
    """States are (groups, channels, batch, *size), the operator is the filter as (groups, rows, columns * taps).

    A library's convolution copies the filter into an order of its own, at each call; a copy of tens of megabytes costs
    more than the products with few images. Here the images are copied instead, what one tap sees below the last. For
    one channel a b c d of an axis, zero padding and three taps::

        filter  [l m r]   times   columns   0 a b c     gives   [l 0 + m a + r b,  l a + m b + r c,  ...]
                                            a b c d
                                            b c d 0
    """

    geometry: Geometry
    dim = 1

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


SERIES_ENGINE = SeriesEngine()
