"""The dense engine: for small images, J as one matrix or as the blocks of one, and matrix products throughout."""

from functools import lru_cache

import torch
from torch import Tensor

from skewconv.ops.convolution import Geometry
from skewconv.ops.engines.abstract_engine import Arranged, Engine
from skewconv.ops.engines.application import Application
from skewconv.ops.engines.block_products import BlockProducts, block_count, pixel_runs
from skewconv.ops.engines.channels import ChannelWidths
from skewconv.ops.engines.costs import Counts, Form, Rates, Request, handed_out_anew
from skewconv.ops.engines.matrix_products import MatrixProducts
from skewconv.ops.engines.series_engine import SERIES_ENGINE
from skewconv.ops.torch_modes import tracing

# Up to this many rows the whole matrix costs less than the many small products of its blocks; more where 3x3 taps leave
# no block of it empty.
MATRIX_ROWS = 320
MATRIX_ROWS_FULL = 512
# Listing more blocks than this takes longer than convolving.
MAX_BLOCKS = 2**14

BLOCKS = Form(
    "blocks",
    training=Rates(0.000301, 2.65e-05, 2.23e-11, 1.21e-09, 1.73e-09, 8.27e-10),
    evaluation=Rates(7.78e-05, 7.39e-06, 5.66e-12, 4.75e-10, 1.72e-09, 4.97e-10),
)
MATRIX = Form(
    "matrix",
    training=Rates(0.000245, 2.62e-05, 1.59e-11, 2.32e-09, 2.51e-09, 0.0),
    evaluation=Rates(5.09e-05, 9.98e-06, 1.01e-11, 4.43e-10, 1.35e-09, 0.0),
)


class DenseEngine(Engine):
    """The recurrence of the series, by products with the matrix J."""

    name = "dense"

    def refusal(self, geometry: Geometry, size: tuple[int, ...] | None) -> str:
        """Images whose Jacobian has too many blocks."""
        blocks = 0 if size is None else block_count(geometry, size)
        if blocks <= MAX_BLOCKS:
            return ""
        return (
            f"an image of size {size} has {blocks} blocks in its Jacobian; the dense engine takes at most {MAX_BLOCKS}"
        )

    def preference(self, request: Request) -> str:
        """A single pixel."""
        return "on a single pixel J is one matrix, and nothing beats a product with it" if request.pixels == 1 else ""

    def cost(self, request: Request) -> Counts:
        """One product a step with the whole matrix, or one for each run of pixels."""
        n, pixels = request.degree, request.pixels
        if uses_matrix(request.widths, request.size):
            whole = pixels**2 * request.tap_elements
            multiply_adds = request.batch * pixels**2 * request.multiply_adds_per_tap
            return Counts(MATRIX, n, multiply_adds, n * request.state_elements, whole, handed_out_anew(whole))
        blocks = block_count(request.geometry, request.size)
        calls, weight = n * len(pixel_runs(request.geometry, request.size)), request.taps * request.tap_elements
        return Counts(
            BLOCKS,
            calls=calls,
            multiply_adds=request.batch * blocks * request.multiply_adds_per_tap,
            moved=n * request.state_elements * blocks / pixels,
            # Each product reads its tap again, from the cache.
            stored=weight + calls * request.tap_elements / 16,
            handed_out=handed_out_anew(weight),
        )

    def arrange(self, x: Tensor, weight: Tensor, task: Application) -> Arranged:
        """The matrix J and images as rows, or its blocks and images pixel by pixel."""
        if tracing():
            # Many small products written out are no program to compile; the convolutions are the same function.
            return SERIES_ENGINE.arrange(x, weight, task)
        in_products = _in_matrix if uses_matrix(task.widths, tuple(x.shape[2:])) else _in_blocks
        return in_products(x, weight, task)


def uses_matrix(widths: ChannelWidths, size: tuple[int, ...]) -> bool:
    """Whether J is assembled as one matrix for each group, rather than left in blocks."""
    pixels = torch.Size(size).numel()
    rows = MATRIX_ROWS_FULL if pixels <= 4 and widths.channels <= 128 else MATRIX_ROWS
    return pixels == 1 or widths.channels * pixels <= rows


def _in_matrix(x: Tensor, weight: Tensor, task: Application) -> Arranged:
    batch, size, widths = x.shape[0], tuple(x.shape[2:]), task.widths
    pixels = torch.Size(size).numel()
    return Arranged(
        lambda images: images.flatten(1).unflatten(1, (widths.groups, -1)).transpose(0, 1),
        jacobian(weight, task.geometry, size),
        MatrixProducts(ChannelWidths(1, widths.channels * pixels, widths.inputs * pixels, widths.outputs * pixels)),
        lambda y: y.transpose(0, 1).reshape(batch, y.shape[0] * y.shape[2] // pixels, *size),
    )


def _in_blocks(x: Tensor, weight: Tensor, task: Application) -> Arranged:
    batch, size, widths = x.shape[0], tuple(x.shape[2:]), task.widths
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim(), torch.contiguous_format)
    order = last if x.is_contiguous(memory_format=last) else torch.contiguous_format

    def restore(y: Tensor) -> Tensor:
        image = y.permute(2, 0, 3, 1).reshape(batch, y.shape[0] * y.shape[3], *size)
        return image.contiguous(memory_format=order)

    return Arranged(
        lambda images: images.flatten(2).unflatten(1, (widths.groups, -1)).permute(1, 3, 0, 2).contiguous(),
        # The order of a filter stored channels last: then nothing is copied.
        weight.flatten(2).mT.contiguous().unflatten(0, (widths.groups, -1)),
        BlockProducts(pixel_runs(task.geometry, size), widths.of_one_group()),
        restore,
    )


def jacobian(weight: Tensor, geometry: Geometry, size: tuple[int, ...]) -> Tensor:
    """J = sum_t L_t (x) P_t: (m, m / groups, *kernel) -> (groups, rows * pixels, columns * pixels)."""
    groups, columns = geometry.groups, weight.shape[1]
    rows, pixels = weight.shape[0] // groups, torch.Size(size).numel()
    if pixels == 1 and weight[0, 0].numel() == 1:
        return weight.view(groups, rows, columns)
    taps = weight.reshape(groups * rows * columns, -1)
    blocks = (taps @ _shifts(geometry, size, weight.dtype, weight.device)).view(groups, rows, columns, pixels, pixels)
    return blocks.transpose(2, 3).reshape(groups, rows * pixels, columns * pixels)


@lru_cache(maxsize=64)
def _shifts(geometry: Geometry, size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """(taps, pixels * pixels): row t is the matrix P_t, 1 where tap t carries a pixel (column) to another (row).

    Three taps on two pixels, as matrices: the tap before, the centre, the tap after::

        0 0    1 0    0 1
        1 0    0 1    0 0
    """
    pixels, taps = torch.Size(size).numel(), torch.Size(geometry.kernel).numel()
    places = [
        (run.tap * pixels + run.target + i) * pixels + run.source + i
        for run in pixel_runs(geometry, size)
        for i in range(run.length)
    ]
    with torch.inference_mode(False):
        flat = torch.zeros(taps * pixels * pixels, dtype=dtype, device=device)
        return flat.index_fill_(0, torch.tensor(places, device=device), 1.0).view(taps, -1)


DENSE_ENGINE = DenseEngine()
