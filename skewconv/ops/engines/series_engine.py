"""The series engine: products with J are convolutions, or one product with a filter too large to be copied.

It serves every request.
"""

import torch
from torch import Tensor

from skewconv.choices import PaddingMode
from skewconv.ops.convolution import Geometry
from skewconv.ops.engines.abstract_engine import Arranged, Engine
from skewconv.ops.engines.application import Application
from skewconv.ops.engines.channels import ChannelWidths
from skewconv.ops.engines.column_products import ColumnProducts
from skewconv.ops.engines.convolution_products import ConvolutionProducts
from skewconv.ops.engines.costs import HALF_PRECISION, Counts, Form, Rates, Request, handed_out_anew
from skewconv.ops.torch_modes import tracing

# PyTorch leaves a single image of so few elements to a simpler convolution, which takes the filter as it is.
_SMALL_IMAGE = 20480
# oneDNN fills up channels to a multiple of this.
_CHANNEL_LANES = 16
# Filters of more elements (in a group) than the first number are taken as they are with pixels up to the second. Beyond
# 32 MiB the system hands out the memory of every copy page by page; and oneDNN passes over borders of zeros.
COLUMN_LIMITS = {"zeros": ((2**23, 512), (2**21, 16)), "circular": ((2**23, 512), (2**21, 64))}

COLUMNS = Form(
    "columns",
    training=Rates(0.0015, 0.000377, 1.26e-11, 1.01e-08, 9.73e-11, 1.16e-09),
    evaluation=Rates(4.58e-05, 0.000215, 3.31e-12, 5.05e-09, 3.83e-11, 5.45e-10),
)
CONVOLUTIONS = Form(
    "convolutions",
    training=Rates(0.000489, 0.000259, 1.95e-11, 3.12e-09, 1.06e-09, 3.36e-09),
    evaluation=Rates(4.93e-05, 0.000131, 4.77e-12, 1.62e-09, 2.66e-10, 1.38e-09),
)
ONE_IMAGE = Form(
    "one image",
    training=Rates(0.00031, 8.48e-05, 1.66e-11, 6.68e-09, 7.77e-10, 0.0),
    evaluation=Rates(6.42e-05, 6.12e-05, 4.01e-12, 1.84e-09, 2.43e-10, 0.0),
)
UNEVEN_CONVOLUTIONS = Form(
    "uneven convolutions",
    training=Rates(0.000331, 0.000275, 1.94e-11, 4.99e-09, 1.16e-09, 3.71e-09),
    evaluation=Rates(0.000168, 7.28e-05, 5.43e-12, 1.62e-09, 5.38e-10, 1.48e-09),
)


class SeriesEngine(Engine):
    """The recurrence of the series, by convolutions of the images."""

    name = "series"

    def preference(self, request: Request) -> str:
        """Where nothing was measured, and in half precision."""
        if request.device != "cpu":
            return f"convolutions are the safe choice on {request.device!r}, where nothing was measured"
        if request.dtype in HALF_PRECISION:
            half = str(request.dtype).removeprefix("torch.")
            return f"convolutions run in {half}, the other engines in float32"
        return ""

    def cost(self, request: Request) -> Counts:
        """A convolution a step (circular padding copies the image for its border), or a product with the filter."""
        n, shapes = request.degree, (request.batch, request.size, request.geometry, request.widths)
        multiply_adds = request.batch * request.pixels * request.taps * request.multiply_adds_per_tap
        weight, columns = request.taps * request.tap_elements, request.taps * request.state_elements
        if uses_columns(*shapes, request.dtype, request.device):
            handed_out = handed_out_anew(weight) + n * handed_out_anew(columns)
            return Counts(COLUMNS, n, multiply_adds, n * columns, n * weight, handed_out)
        form = ONE_IMAGE if is_quick(*shapes) else CONVOLUTIONS
        if form is CONVOLUTIONS and request.widths.channels % _CHANNEL_LANES:
            form = UNEVEN_CONVOLUTIONS
        state, border = request.state_elements, request.bordered_elements
        return Counts(
            form, n, multiply_adds, n * (state + border), n * weight, n * handed_out_anew(weight, state, border)
        )

    def memory_format(self, request: Request) -> str:
        """That of the convolutions; columns have their own order."""
        shapes = (request.batch, request.size, request.geometry, request.widths)
        order = memory_format(request.widths.channels, request.size, request.geometry.padding_mode)
        if uses_columns(*shapes, request.dtype, request.device) or order == torch.contiguous_format:
            return "contiguous"
        return "channels_last"

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
        products = ConvolutionProducts(geometry, widths, order, joins_steps=weight.numel() > x.numel())
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


def is_quick(batch: int, size: tuple[int, ...], geometry: Geometry, widths: ChannelWidths) -> bool:
    """Whether PyTorch convolves without copying the filter first."""
    border = geometry.reach if geometry.padding_mode == "circular" else (0,) * geometry.axes
    padded = torch.Size(n + 2 * r for n, r in zip(size, border, strict=True)).numel()
    return batch <= 1 and geometry.axes < 3 and widths.groups * widths.channels * padded <= _SMALL_IMAGE


def uses_columns(
    batch: int, size: tuple[int, ...], geometry: Geometry, widths: ChannelWidths, dtype: torch.dtype, device: str
) -> bool:
    """Whether the images are copied rather than the filter; processors take products of half precision less well."""
    if device != "cpu" or dtype not in (torch.float32, torch.float64):
        return False
    elements = torch.Size(geometry.kernel).numel() * widths.channels**2
    pixels = batch * torch.Size(size).numel()
    limits = COLUMN_LIMITS[geometry.padding_mode]
    most = next((pixels for least, pixels in limits if elements > least), 0)
    quick = elements <= limits[0][0] and is_quick(batch, size, geometry, widths)
    return pixels <= most and not quick


def _in_columns(weight: Tensor, task: Application) -> Arranged:
    widths = task.widths
    return Arranged(
        lambda images: images.unflatten(1, (widths.groups, -1)).movedim(0, 2).contiguous(),
        weight.flatten(1).unflatten(0, (widths.groups, -1)),
        ColumnProducts(task.geometry, widths.of_one_group()),
        lambda y: y.movedim(2, 0).flatten(1, 2),
    )


SERIES_ENGINE = SeriesEngine()
