"""The dense engine: for small images, J as one matrix or as the blocks of one, and matrix products throughout.

A convolution multiplies every tap with every pixel, zeros past the border included. On a 2x2 image 16 of the 36
products of a 3x3 filter meet a pixel, on 4x4 100 of 144, and on 1x1 only the centre tap acts.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from skewconv.checks import IntOrTuple, check_filter, check_padding_mode, per_axis
from skewconv.choices import PaddingMode
from skewconv.errors import ShapeError
from skewconv.ops.convolution import Geometry, odd_filter
from skewconv.ops.engines import HALF_PRECISION, Arranged, Engine, Request
from skewconv.ops.engines.series_engine import SERIES_ENGINE
from skewconv.ops.products import baddbmm, baddbmm_, bmm, by_onednn
from skewconv.ops.recurrence import (
    ChannelWidths,
    JacobianProducts,
    MatrixProducts,
    StepPair,
    fit_channels,
    joined_steps,
)
from skewconv.ops.torch_modes import tracing

# Up to this many rows the whole matrix costs less than the many small products of its blocks; more where 3x3 taps leave
# no block of it empty.
MATRIX_ROWS = 320
MATRIX_ROWS_FULL = 512
# Listing more blocks than this takes longer than convolving.
MAX_BLOCKS = 2**14
# Products of a batch with one small matrix, in multiply-adds, that cost less than a call of a convolution; around a
# torus, than a product a frequency.
_SMALL_PRODUCT = {"zeros": 2**24, "circular": 2**23}
# Blocks pay where they spare this share of the products, for two images on a few pixels or for this much work a pixel.
_FEW_PIXELS, _LARGE_PRODUCT = 4, 2**21


class DenseEngine(Engine):
    name = "dense"

    def refusal(self, geometry: Geometry, size: tuple[int, ...] | None) -> str:
        blocks = 0 if size is None else block_count(geometry, size)
        if blocks <= MAX_BLOCKS:
            return ""
        most = f"the dense engine takes at most {MAX_BLOCKS}"
        return f"an image of size {size} has {blocks} blocks in its Jacobian; {most}"

    def advantage(self, request: Request) -> str:
        """A small matrix; or blocks of which many lie outside the image, if each is a product of some size."""
        pixels, geometry, channels, batch = request.pixels, request.geometry, request.widths.channels, request.batch
        rows = channels * pixels
        if request.dtype in HALF_PRECISION:
            # Around a torus of several pixels a matrix for each frequency is smaller.
            single = self.working_dtype(request) == request.dtype and (pixels == 1 or geometry.padding_mode == "zeros")
            return f"J is one matrix of {rows} rows" if single else ""
        if pixels == 1 or (rows <= MATRIX_ROWS and batch * rows**2 <= _SMALL_PRODUCT[geometry.padding_mode]):
            return f"J is one matrix of {rows} rows"
        inside = block_count(geometry, request.size) / (math.prod(geometry.kernel) * pixels)
        few = inside <= 0.5 and pixels <= _FEW_PIXELS and batch > 1
        if few or (inside <= 0.7 and batch * channels**2 >= _LARGE_PRODUCT):
            return f"{inside:.0%} of the products of taps with pixels lie inside the image"
        return ""

    def arrange(self, x: Tensor, weight: Tensor, request: Request) -> Arranged:
        if tracing():
            # Many small products written out are no program to compile; the convolutions are the same function.
            return SERIES_ENGINE.arrange(x, weight, request)
        arranged = _in_matrix if uses_matrix(x.dtype, request.widths, request.size) else _in_blocks
        return arranged(x, weight, request)

    def working_dtype(self, request: Request) -> torch.dtype:
        """bfloat16 on few pixels, where J is one matrix: a product with it is rounded once, a sum of blocks often."""
        in_matrix = request.dtype == torch.bfloat16 and request.pixels <= _FEW_PIXELS
        return request.dtype if in_matrix else super().working_dtype(request)


def uses_matrix(dtype: torch.dtype, widths: ChannelWidths, size: tuple[int, ...]) -> bool:
    """True where J is assembled as one matrix for each group, rather than left in blocks."""
    pixels = torch.Size(size).numel()
    rows = MATRIX_ROWS_FULL if pixels <= 4 and widths.channels <= 128 else MATRIX_ROWS
    return pixels == 1 or widths.channels * pixels <= rows or dtype == torch.bfloat16


def _in_matrix(x: Tensor, weight: Tensor, request: Request) -> Arranged:
    batch, size, widths, pixels = len(x), request.size, request.widths, request.pixels
    return Arranged(
        [x.flatten(1).unflatten(1, (widths.groups, -1)).transpose(0, 1)],
        [jacobian(weight, request.geometry, size)],
        [MatrixProducts(widths.times(pixels))],
        lambda y: y.transpose(0, 1).reshape(batch, y.shape[0] * y.shape[2] // pixels, *size),
    )


def _in_blocks(x: Tensor, weight: Tensor, request: Request) -> Arranged:
    batch, size, widths = len(x), request.size, request.widths
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim(), torch.contiguous_format)
    order = last if x.is_contiguous(memory_format=last) else torch.contiguous_format

    def restore(y: Tensor) -> Tensor:
        image = y.permute(2, 0, 3, 1).reshape(batch, y.shape[0] * y.shape[3], *size)
        return image.contiguous(memory_format=order)

    return Arranged(
        [x.flatten(2).unflatten(1, (widths.groups, -1)).permute(1, 3, 0, 2).contiguous()],
        [_by_taps(weight).unflatten(0, (widths.groups, -1))],
        [BlockProducts(replace(widths, groups=1), pixel_runs(request.geometry, size))],
        restore,
    )


def _by_taps(weight: Tensor) -> Tensor:
    """(rows, taps, columns) in memory as a filter stored channels last, so that nothing is copied, or tap by tap."""
    taps = weight.flatten(2)
    return taps.permute(2, 0, 1).contiguous().transpose(0, 1) if by_onednn(weight) else taps.mT.contiguous()


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
    """(taps, pixels * pixels): row t is the matrix P_t, 1 where tap t carries a pixel (column) to another (row)."""
    taps = math.prod(geometry.kernel)
    with torch.inference_mode(False):
        one_tap_each = torch.eye(taps, dtype=dtype, device=device).view(taps, 1, *geometry.kernel)
        return dense_jacobian(one_tap_each, size, geometry.padding_mode, geometry.dilation).view(taps, -1)


class PixelRun(NamedTuple):
    """y[target + i] receives tap @ x[source + i] for i < length; pixels are counted in row-major order."""

    tap: int
    target: int
    source: int
    length: int


@lru_cache(maxsize=256)
def pixel_runs(geometry: Geometry, size: tuple[int, ...]) -> tuple[PixelRun, ...]:
    """Every product of a tap with a pixel of the image, in runs; the centre tap, which meets them all, first."""
    found: list[PixelRun] = []
    centre = torch.Size(geometry.kernel).numel() // 2
    for tap, index in enumerate(product(*map(range, geometry.kernel))):
        shift = [d * (t - k // 2) for t, d, k in zip(index, geometry.dilation, geometry.kernel, strict=True)]
        for target, pixel in enumerate(product(*map(range, size))):
            source = 0
            for p, s, n in zip(pixel, shift, size, strict=True):
                inside = 0 <= p + s < n or geometry.padding_mode == "circular"
                source = source * n + (p + s) % n if inside and source >= 0 else -1
            last = found[-1] if found else None
            if source < 0:
                continue
            if last and last.tap == tap and last.target + last.length == target and last.source + last.length == source:
                found[-1] = last._replace(length=last.length + 1)
            else:
                found.append(PixelRun(tap, target, source, 1))
    return tuple(sorted(found, key=lambda run: run.tap != centre))


def block_count(geometry: Geometry, size: tuple[int, ...]) -> int:
    """Number of (pixel, pixel) blocks of J: per axis, the sum over taps of the pixels from which they stay inside."""
    if geometry.padding_mode == "circular":
        return math.prod(geometry.kernel) * math.prod(size)
    axes = zip(geometry.kernel, geometry.dilation, size, strict=True)
    return math.prod(sum(max(0, n - d * abs(t - k // 2)) for t in range(k)) for k, d, n in axes)


@dataclass(frozen=True)
class BlockProducts(JacobianProducts):
    """States are (groups, pixels, batch, channels), the operator is the filter as (groups, rows, taps, columns)."""

    runs: tuple[PixelRun, ...]
    dim = 3

    def product(self, state: Tensor, operator: Tensor, rows: int, back: Tensor | None, factor: float) -> Tensor:
        groups, pixels, batch, columns = state.shape
        taps = [tap.mT for tap in operator[:, :rows, :, :columns].unbind(2)]
        flat = state.reshape(groups, pixels * batch, columns)
        everywhere, *others = self.runs
        if back is None or factor == 0.0:
            image = bmm(flat, taps[everywhere.tap])
        else:
            image = baddbmm(fit_channels(back, 3, 1, rows).flatten(1, 2), flat, taps[everywhere.tap], beta=factor)
        for tap, target, source, length in others:
            part = flat.narrow(1, source * batch, length * batch)
            baddbmm_(image.narrow(1, target * batch, length * batch), part, taps[tap])
        return image.view(groups, pixels, batch, rows)

    def operator_grad(self, pairs: Sequence[StepPair], operator: Tensor, total: Tensor | None) -> Tensor:
        every_tap = set(range(operator.shape[2]))
        written = set() if total is None else every_tap
        for grad, state, sign in joined_steps(pairs, 3, 2):
            rows = state.shape[2]
            left, right = grad.flatten(1, 2).mT, state.flatten(1, 2)
            if total is None:
                # The widest come first: what they write whole need not be cleared before.
                whole = (left.shape[1], right.shape[2]) == (operator.shape[1], operator.shape[3])
                overwritten = whole and {run.tap for run in self.runs} == every_tap
                total = torch.empty_like(operator) if overwritten else torch.zeros_like(operator)
            taps = total[:, : left.shape[1], :, : right.shape[2]].unbind(2)
            for tap, target, source, length in self.runs:
                here = left.narrow(2, target * rows, length * rows)
                beta = 1.0 if tap in written else 0.0
                baddbmm_(taps[tap], here, right.narrow(1, source * rows, length * rows), alpha=sign, beta=beta)
                written.add(tap)
        assert total is not None
        return total


def dense_jacobian(
    weight: Tensor, size: IntOrTuple, padding_mode: PaddingMode = "zeros", dilation: IntOrTuple = 1, groups: int = 1
) -> Tensor:
    """J = sum_t L_t (x) P^(t_1) (x) P^(t_2) ...: the matrix of a convolution, written out (Section 4 of the paper).

    >>> import torch
    >>> dense_jacobian(torch.tensor([[[-1.0, 0.0, 1.0]]]), size=3)
    tensor([[ 0.,  1.,  0.],
            [-1.,  0.,  1.],
            [ 0., -1.,  0.]])

    Args:
        weight: (c_out, c_in / groups, *kernel); even sizes act as with ``padding="same"``.
        size: the image's spatial sizes.
        padding_mode: "zeros" or "circular" (a kernel wider than the image wraps as often as it must).

    Returns:
        (c_out * pixels, c_in * pixels), rows and columns in the order of ``x.flatten()`` for x (c, *size).
    """
    check_filter(weight, groups=groups)
    check_padding_mode(padding_mode)
    weight = odd_filter(weight)
    kernel = tuple(weight.shape[2:])
    sizes, steps = per_axis(size, len(kernel), "size"), per_axis(dilation, len(kernel), "dilation")
    rows, columns = weight.shape[0] // groups, weight.shape[1]
    blocks = weight.reshape(groups, rows, columns, -1)
    pixels = torch.Size(sizes).numel()
    jacobian = weight.new_zeros(groups * rows, pixels, groups * columns, pixels)
    for index, tap in enumerate(product(*(range(k) for k in kernel))):
        shift = torch.ones(1, 1, dtype=weight.dtype, device=weight.device)
        for t, k, n, d in zip(tap, kernel, sizes, steps, strict=True):
            shift = torch.kron(shift, _shift_matrix(n, d * (t - k // 2), padding_mode).to(shift))
        channels: Tensor = torch.block_diag(*blocks[..., index])
        jacobian += torch.einsum("ij,pq->ipjq", channels, shift)
    return jacobian.reshape(groups * rows * pixels, groups * columns * pixels)


def _shift_matrix(size: int, offset: int, padding_mode: PaddingMode) -> Tensor:
    """P with (P x)[i] = x[i + offset]: past the border zero, or around it."""
    if padding_mode == "zeros":
        return torch.diag(torch.ones(size - abs(offset)), offset) if abs(offset) < size else torch.zeros(size, size)
    return torch.eye(size).roll(offset, 1)


def dense_matrix(
    linear_map: Callable[[Tensor], Tensor],
    input_shape: Sequence[int],
    *,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
) -> Tensor:
    """The matrix of a linear map of batches, (n, *input_shape) -> (n, *output_shape), from its action on the identity.

    >>> dense_matrix(lambda x: 2 * x, (2,))
    tensor([[2., 0.],
            [0., 2.]], dtype=torch.float64)
    """
    length = torch.Size(input_shape).numel()
    if length == 0:
        raise ShapeError(f"input_shape {tuple(input_shape)} is empty; every size must be at least 1")
    basis = torch.eye(length, dtype=dtype, device=device).reshape(length, *input_shape)
    return linear_map(basis).reshape(length, -1).T


DENSE_ENGINE = DenseEngine()
