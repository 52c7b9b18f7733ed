"""The dense engine: for small images, J as one matrix or as the blocks of one, and matrix products throughout."""

from functools import lru_cache

import torch
from torch import Tensor

from skewconv.errors import ArgumentError
from skewconv.ops.convolution import Geometry
from skewconv.ops.engines import series
from skewconv.ops.engines.adjoint import run, tracing
from skewconv.ops.engines.blocks import Blocks, block_count, runs
from skewconv.ops.engines.channels import Cut
from skewconv.ops.engines.matrices import Matrices
from skewconv.ops.engines.operator import Operator, exponential
from skewconv.ops.engines.steps import steps_of
from skewconv.ops.polynomials import Polynomial
from skewconv.ops.series import Recurrence

# Up to this many rows the whole matrix costs less than the many small products of its blocks; more where 3x3 taps leave
# no block of it empty.
MATRIX_ROWS = 320
MATRIX_ROWS_FULL = 512
# Listing more blocks than this takes longer than convolving.
MAX_BLOCKS = 2**14
# exp(J) and its workspace are a few square matrices in float64.
OPERATOR_BYTES = 2**29


def refusal(geometry: Geometry, size: tuple[int, ...]) -> str:
    """Why the engine cannot serve this image, or an empty string."""
    blocks = block_count(geometry, size)
    if blocks <= MAX_BLOCKS:
        return ""
    return f"an image of size {size} has {blocks} blocks in its Jacobian; the dense engine takes at most {MAX_BLOCKS}"


def uses_matrix(cut: Cut, size: tuple[int, ...]) -> bool:
    """Whether J is assembled as one matrix for each group, rather than left in blocks."""
    pixels = torch.Size(size).numel()
    rows = MATRIX_ROWS_FULL if pixels <= 4 and cut.channels <= 128 else MATRIX_ROWS
    return pixels == 1 or cut.channels * pixels <= rows


def apply(
    x: Tensor, weight: Tensor, polynomial: Polynomial, geometry: Geometry, cut: Cut, *, inverse: bool, recompute: bool
) -> Tensor:
    """p(J) x, or p(-J) x, by matrix products: (batch, groups * inputs, *size) -> (batch, groups * outputs, *size)."""
    if tracing():
        # Many small products written out are no program to compile; the convolutions are the same function.
        return series.apply(x, weight, polynomial, geometry, cut, inverse=inverse, recompute=recompute)
    steps = steps_of(polynomial, inverse=inverse, recompute=recompute)
    products = _by_matrix if uses_matrix(cut, tuple(x.shape[2:])) else _by_blocks
    return products(x, weight, steps, geometry, cut, recompute)


def _by_matrix(x: Tensor, weight: Tensor, steps: Recurrence, geometry: Geometry, cut: Cut, recompute: bool) -> Tensor:
    batch, size = x.shape[0], tuple(x.shape[2:])
    pixels = torch.Size(size).numel()
    action = Matrices(Cut(1, cut.channels * pixels, cut.inputs * pixels, cut.outputs * pixels))
    rows = x.reshape(batch, cut.groups, cut.inputs * pixels).transpose(0, 1)
    y = run(rows, jacobian(weight, geometry, size), steps, action, recompute=recompute)
    return y.transpose(0, 1).reshape(batch, cut.groups * cut.outputs, *size)


def _by_blocks(x: Tensor, weight: Tensor, steps: Recurrence, geometry: Geometry, cut: Cut, recompute: bool) -> Tensor:
    batch, size = x.shape[0], tuple(x.shape[2:])
    action = Blocks(runs(geometry, size), Cut(1, cut.channels, cut.inputs, cut.outputs))
    state = x.flatten(2).unflatten(1, (cut.groups, -1)).permute(1, 3, 0, 2).contiguous()
    # The order of a filter stored channels last: then nothing is copied.
    filters = weight.flatten(2).mT.contiguous().unflatten(0, (cut.groups, -1))
    y = run(state, filters, steps, action, recompute=recompute).permute(2, 0, 3, 1)
    image = y.reshape(batch, cut.groups * cut.outputs, *size)
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim(), torch.contiguous_format)
    keeps_last = x.is_contiguous(memory_format=last)
    return image.contiguous(memory_format=last if keeps_last else torch.contiguous_format)


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
    """(taps, pixels * pixels): 1 where a tap carries a pixel (last axis) to another (the axis before)."""
    pixels, taps = torch.Size(size).numel(), torch.Size(geometry.kernel).numel()
    places = [
        (step.tap * pixels + step.target + i) * pixels + step.source + i
        for step in runs(geometry, size)
        for i in range(step.length)
    ]
    with torch.inference_mode(False):
        flat = torch.zeros(taps * pixels * pixels, dtype=dtype, device=device)
        return flat.index_fill_(0, torch.tensor(places, device=device), 1.0).view(taps, -1)


def operator(weight: Tensor, size: tuple[int, ...], geometry: Geometry, cut: Cut) -> Operator:
    """exp(J) itself, in float64: (groups, outputs * pixels, inputs * pixels), for rows ``x.flatten()`` of a group.

    Args:
        weight: (m, m / groups, *kernel), a real skew filter.
        size: the image's spatial sizes.
    """
    pixels = torch.Size(size).numel()
    needed = 8 * geometry.groups * (cut.channels * pixels) ** 2
    if needed > OPERATOR_BYTES:
        raise ArgumentError(
            f"exp(J) of {cut.channels} channels on an image of size {size} takes {needed / 2**20:.0f} MiB in float64; "
            f"at most {OPERATOR_BYTES / 2**20:.0f} MiB are allowed: apply the polynomial instead"
        )
    with torch.no_grad():
        full = jacobian(weight.detach().double(), geometry, size)
        return exponential(full, cut.outputs * pixels, cut.inputs * pixels)
