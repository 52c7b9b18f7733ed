"""The Winograd engine: 3 x 3 products with a quarter of the multiplications, for wide layers on images of some size."""

import torch
import torch.nn.functional as F
from torch import Tensor

from skewconv.ops.convolution import Geometry
from skewconv.ops.engines.abstract_engine import Arranged, Engine
from skewconv.ops.engines.application import Application
from skewconv.ops.engines.costs import Counts, Form, Rates, Request, handed_out_anew
from skewconv.ops.engines.series_engine import SERIES_ENGINE, memory_format
from skewconv.ops.engines.winograd_products import POINTS, TILE, WinogradProducts, transformed
from skewconv.ops.torch_modes import tracing

# A product errs three to five times as much as a convolution: no harm beside a truncation error from here on.
LEAST_ERROR = 1e-5
# With fewer channels the way to the points and back costs more than the products save.
LEAST_CHANNELS = 128

TILES = Form(
    "tiles",
    training=Rates(0.0, 0.000209, 1.58e-11, 1.84e-09, 4.17e-10, 1.9e-09),
    evaluation=Rates(0.000257, 8.14e-05, 3.65e-12, 6.48e-10, 7.7e-11, 9.15e-10),
)


class WinogradEngine(Engine):
    """The recurrence of the series, by products at the points of Winograd's algorithm."""

    name = "winograd"

    def refusal(self, geometry: Geometry, size: tuple[int, ...] | None) -> str:
        """All but plain filters of up to 3 x 3 taps."""
        if geometry.axes != 2 or max(geometry.kernel) > 3 or max(geometry.dilation) > 1 or geometry.groups > 1:
            return (
                "the winograd engine needs a 3 x 3 filter without dilation and groups; got "
                f"kernel {geometry.kernel}, dilation {geometry.dilation}, groups {geometry.groups}"
            )
        return ""

    def reservation(self, request: Request) -> str:
        """Its rounding error, where that would show; and narrow layers."""
        if request.geometry.padding_mode == "circular":
            return "circular images are better served by their frequencies"
        if request.dtype != torch.float32:
            return "it was measured in float32 alone"
        if request.widths.channels < LEAST_CHANNELS:
            return f"its transforms are dear with fewer than {LEAST_CHANNELS} channels"
        if request.truncation_error < LEAST_ERROR:
            return f"its rounding would show beside a truncation error below {LEAST_ERROR:g}"
        return ""

    def cost(self, request: Request) -> Counts:
        """36 products a tile; six times two small products with every pixel."""
        n, height, width = request.degree, *request.size
        strips, tiles = -(-height // TILE), -(-width // TILE)
        points = strips * tiles * POINTS**2
        multiply_adds = request.batch * points * request.multiply_adds_per_tap
        values = request.state_elements / request.pixels * points
        weight = POINTS**2 * request.tap_elements
        return Counts(
            TILES,
            calls=n * strips,
            multiply_adds=multiply_adds,
            moved=n * (request.state_elements + 2 * values),
            stored=weight + n * weight * strips,
            handed_out=handed_out_anew(weight) + n * handed_out_anew(request.state_elements),
        )

    def memory_format(self, request: Request) -> str:
        """That of the convolutions, for the layers around."""
        return SERIES_ENGINE.memory_format(request)

    def arrange(self, x: Tensor, weight: Tensor, task: Application) -> Arranged:
        """Pixel by pixel, and the filter at the points; compilers and transforms get convolutions."""
        if tracing():
            return SERIES_ENGINE.arrange(x, weight, task)
        missing = [(3 - k) // 2 for k in reversed(weight.shape[2:]) for _ in range(2)]
        filters = transformed(F.pad(weight, missing) if any(missing) else weight)
        order = memory_format(task.widths.channels, tuple(x.shape[2:]), task.geometry.padding_mode)
        return Arranged(
            lambda images: images.permute(2, 3, 0, 1).contiguous(),
            filters,
            WinogradProducts(task.geometry.padding_mode, task.widths),
            lambda y: y.permute(2, 3, 0, 1).contiguous(memory_format=order),
        )


WINOGRAD_ENGINE = WinogradEngine()
