"""The Winograd engine: 3 x 3 products with a quarter of the multiplications, for wide layers on images of some size.

Winograd's algorithm F(4 x 4, 3 x 3) takes 36 multiplications for 16 pixels, where a filter has 144: polynomials are
multiplied by their values at 6 x 6 points, matrices of channels (Lavin and Gray, "Fast algorithms for convolutional
neural networks", 2016). All maps act on rows and columns apart, as products with small matrices. A strip is a row of
tiles, so that its 36 products each have all the pixels of a strip, and of the batch, as their rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from skewconv.choices import PaddingMode
from skewconv.ops.convolution import Geometry
from skewconv.ops.engines import Arranged, Engine, Request
from skewconv.ops.engines.series_engine import SERIES_ENGINE, memory_format
from skewconv.ops.products import baddbmm_, bmm
from skewconv.ops.recurrence import JacobianProducts, StepPair, add_channels_, fit_channels
from skewconv.ops.torch_modes import tracing

# A product errs up to five times as much as a convolution: no harm beside a truncation error from here on.
LEAST_ERROR = 1e-5
# With fewer channels, or fewer tiles in a strip of the batch, the way to the points and back costs more than is saved.
LEAST_CHANNELS = 64
# Where oneDNN is faster than MKL its convolutions are, too, and the transforms are not.
_LEAST_BESIDE_ONEDNN = 256
_LEAST_TILES = 16

TILE = 4
POINTS = TILE + 2
# And infinity. The rounding error is less than half of that with 0, 1, -1, 2, -2: their powers differ less in size.
_FINITE_POINTS = (0.0, 2**-0.5, -(2**-0.5), 2**0.5, -(2**0.5))


class WinogradEngine(Engine):
    name = "winograd"

    def refusal(self, geometry: Geometry, size: tuple[int, ...] | None) -> str:
        if geometry.axes != 2 or max(geometry.kernel) > 3 or max(geometry.dilation) > 1 or geometry.groups > 1:
            return (
                "the winograd engine needs a 3 x 3 filter without dilation and groups; got "
                f"kernel {geometry.kernel}, dilation {geometry.dilation}, groups {geometry.groups}"
            )
        return ""

    def advantage(self, request: Request) -> str:
        tiles = request.batch * -(-request.size[-1] // TILE)
        filled = min(request.size) >= TILE and tiles >= _LEAST_TILES
        least = _LEAST_BESIDE_ONEDNN if request.onednn else LEAST_CHANNELS
        wide = request.widths.channels >= least
        hidden = request.dtype == torch.float32 and request.truncation_error >= LEAST_ERROR
        if wide and filled and hidden and request.geometry.padding_mode == "zeros":
            return f"36 multiplications for 16 pixels, with a rounding error below {LEAST_ERROR:g}"
        return ""

    def arrange(self, x: Tensor, weight: Tensor, request: Request) -> Arranged:
        """Pixel by pixel, and the filter at the points; compilers and transforms get convolutions."""
        if tracing():
            return SERIES_ENGINE.arrange(x, weight, request)
        missing = [(3 - k) // 2 for k in reversed(weight.shape[2:]) for _ in range(2)]
        filters = transformed(F.pad(weight, missing) if any(missing) else weight)
        order = memory_format(request.widths.channels, request.size, request.geometry.padding_mode)
        return Arranged(
            [x.permute(2, 3, 0, 1).contiguous()],
            [filters],
            [WinogradProducts(request.widths, request.geometry.padding_mode)],
            lambda y: y.permute(2, 3, 0, 1).contiguous(memory_format=order),
        )


class Transforms(NamedTuple):
    """E (6 x 6) evaluates a line of pixels, F (6 x 3) one of the filter, and P (4 x 6) makes pixels of the products."""

    pixels: np.ndarray
    filters: np.ndarray
    back: np.ndarray


@lru_cache(maxsize=1)
def transforms() -> Transforms:
    """E, F and P, by Lagrange's formula."""
    points = np.array(_FINITE_POINTS)
    pixels, filters = np.zeros((POINTS, POINTS)), np.zeros((POINTS, 3))
    for number, point in enumerate(points):
        others = np.delete(points, number)
        pixels[number, :-1] = np.poly(others)[::-1]
        filters[number] = point ** np.arange(3) / np.prod(point - others)
    pixels[-1], filters[-1, -1] = np.poly(points)[::-1], 1
    back = np.concatenate([points ** np.arange(TILE)[:, None], np.eye(TILE)[:, -1:]], 1)
    return Transforms(pixels, filters, back)


class Strip(NamedTuple):
    """A row of tiles, from the pixels' rows [first, last) to [top, bottom), with E and P for what lies in the image."""

    first: int
    last: int
    rows: Tensor
    top: int
    bottom: int
    back: Tensor


class Tables(NamedTuple):
    """For an image's size: its strips, and E and P for all the tiles of a strip: (6 tiles, width), (width, 6 tiles)."""

    strips: tuple[Strip, ...]
    columns: Tensor
    back: Tensor


@lru_cache(maxsize=64)
def tables(size: tuple[int, int], padding_mode: PaddingMode, dtype: torch.dtype, device: torch.device) -> Tables:
    height, width = size
    by_rows, by_columns = (_of_tiles(n, padding_mode) for n in size)
    back = transforms().back
    pixels = np.zeros((len(by_columns), TILE, POINTS, len(by_columns)))
    for tile in range(len(by_columns)):
        pixels[tile, :, :, tile] = back

    def tensor(matrix: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(matrix)).to(device, dtype)

    with torch.inference_mode(False):
        strips = []
        for top, rows in zip(range(0, height, TILE), by_rows, strict=True):
            met, bottom = np.flatnonzero(rows.any(0)), min(height, top + TILE)
            first, last = int(met[0]), int(met[-1]) + 1
            strips.append(Strip(first, last, tensor(rows[:, first:last]), top, bottom, tensor(back[: bottom - top])))
        columns = by_columns.swapaxes(0, 1).reshape(-1, width)
        return Tables(tuple(strips), tensor(columns), tensor(pixels.reshape(-1, POINTS * len(by_columns))[:width]))


def _of_tiles(pixels: int, padding_mode: PaddingMode) -> np.ndarray:
    """E for each tile of a line: (tiles, 6, pixels)."""
    tops = range(0, pixels, TILE)
    found = np.zeros((len(tops), POINTS, pixels))
    for tile, top in enumerate(tops):
        for column in range(POINTS):
            pixel = top - 1 + column
            if padding_mode == "circular" or 0 <= pixel < pixels:
                found[tile, :, pixel % pixels] += transforms().pixels[:, column]
    return found


def transformed(weight: Tensor) -> Tensor:
    """The filter at the points: (rows, columns, 3, 3) -> (36, rows, columns)."""
    line = torch.from_numpy(transforms().filters).to(weight.device)
    both = torch.kron(line, line).to(weight.dtype)
    taps = weight.flatten(2).permute(2, 0, 1)
    return (both @ taps.flatten(1)).view(-1, *taps.shape[1:])


@dataclass(frozen=True)
class WinogradProducts(JacobianProducts):
    """States are (height, width, batch, channels), the operator is the filter as :func:`transformed` makes it."""

    padding_mode: PaddingMode
    dim = 3

    def joins_steps(self, x: Tensor, operator: Tensor) -> bool:
        return False  # a step is many products already

    def product(self, state: Tensor, operator: Tensor, rows: int, back: Tensor | None, factor: float) -> Tensor:
        height, width, batch, columns = state.shape
        filters, known = operator[:, :rows, :columns].mT, self._tables(state)
        values = known.back.shape[1]
        made = (bmm(tiles, filters).view(POINTS, values, batch * rows) for tiles in _tiles(state, known))
        lines = ((known.back @ line).view(POINTS, width * batch * rows) for line in made)
        if torch.is_grad_enabled() or tracing():
            parts = [strip.back @ line for strip, line in zip(known.strips, lines, strict=True)]
            image = torch.cat(parts).view(height, width, batch, rows)
            return image if back is None or factor == 0.0 else image + factor * fit_channels(back, 3, 1, rows)
        image = state.new_empty(height, width, batch, rows)
        for strip, line in zip(known.strips, lines, strict=True):
            torch.mm(strip.back, line, out=image[strip.top : strip.bottom].view(len(strip.back), line.shape[1]))
        if back is not None:
            add_channels_(image, back, factor, 3, 1)
        return image

    def operator_grad(self, pairs: Sequence[StepPair], operator: Tensor, total: Tensor | None) -> Tensor:
        for grad, state, sign in pairs:
            known, beta = self._tables(state), 1.0
            rows, columns = grad.shape[3], state.shape[3]
            if total is None:
                # The first strip overwrites its part: the rest alone is cleared.
                total, beta = torch.empty_like(operator), 0.0
                total[:, rows:].zero_()
                total[:, :rows, columns:].zero_()
            part = total[:, :rows, :columns]
            for strip, right in zip(known.strips, _tiles(state, known), strict=True):
                # The adjoint of the way back to pixels.
                left = _at_points(grad[strip.top : strip.bottom], strip.back.mT, known.back.mT)
                baddbmm_(part, left.mT, right, alpha=sign, beta=beta)
                beta = 1.0
        assert total is not None
        return total

    def _tables(self, state: Tensor) -> Tables:
        return tables((state.shape[0], state.shape[1]), self.padding_mode, state.dtype, state.device)


def _tiles(state: Tensor, known: Tables) -> Iterator[Tensor]:
    """Each strip at the points: (36, tiles * batch, channels)."""
    for strip in known.strips:
        yield _at_points(state[strip.first : strip.last], strip.rows, known.columns)


def _at_points(pixels: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """(lines, width, batch, channels) -> (36, tiles * batch, channels), by products along both axes."""
    lines, width, batch, channels = pixels.shape
    values = (rows @ pixels.view(lines, width * batch * channels)).view(POINTS, width, batch * channels)
    return (columns @ values).view(POINTS**2, len(columns) // POINTS * batch, channels)


WINOGRAD_ENGINE = WinogradEngine()
