"""Products with J as matrix products of its blocks: one for each run of pixels that a tap reaches inside the image.

A convolution multiplies every tap with every pixel, zeros past the border included. On a 2x2 image 16 of the 36
products of a 3x3 filter meet a pixel, on 4x4 100 of 144, and on 1x1 only the centre tap acts.

A run is a stretch of pixels, in row-major order, that one tap carries to another stretch. On a 2x3 image the tap to the
right carries two pixels in each row, which makes two runs of length 2; the tap below carries a whole row, one run::

    pixels     tap to the right (0, 1)        tap below (1, 0)
    0 1 2      y[0] += R x[1], y[1] += R x[2]      y[0:3] += B x[3:6]
    3 4 5      y[3] += R x[4], y[4] += R x[5]
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from skewconv.ops.convolution import Geometry
from skewconv.ops.engines.channels import ChannelWidths, fit_channels
from skewconv.ops.engines.jacobian_products import StepPair, joined_steps


class PixelRun(NamedTuple):
    """y[target + i] receives tap @ x[source + i] for i < length; pixels are counted in row-major order."""

    tap: int
    target: int
    source: int
    length: int


@lru_cache(maxsize=256)
def pixel_runs(geometry: Geometry, size: tuple[int, ...]) -> tuple[PixelRun, ...]:
    """Every product of a tap with a pixel of the image, in runs; the centre tap, which meets them all, first.

    >>> geometry = Geometry((3,), (1,), 1, "zeros")
    >>> pixel_runs(geometry, (2,))
    (PixelRun(tap=1, target=0, source=0, length=2), PixelRun(tap=0, target=1, ...), PixelRun(tap=2, target=0, ...))
    >>> [(run.target, run.source, run.length) for run in pixel_runs(Geometry((1, 3), (1, 1), 1, "zeros"), (2, 3))]
    [(0, 0, 6), (1, 0, 2), (4, 3, 2), (0, 1, 2), (3, 4, 2)]
    """
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
    """How many (pixel, pixel) blocks of J are products: per axis, the offsets that stay inside, one by one.

    >>> block_count(Geometry((3, 3), (1, 1), 1, "zeros"), (2, 2))  # 1 + 2 + 1 along each axis
    16
    """
    count = 1
    for k, d, n in zip(geometry.kernel, geometry.dilation, size, strict=True):
        inside = [n if geometry.padding_mode == "circular" else max(0, n - d * abs(t - k // 2)) for t in range(k)]
        count *= sum(inside)
    return count


@dataclass(frozen=True)
class BlockProducts:
    """States are (groups, pixels, batch, channels), the operator is the filter as (groups, rows, taps, columns)."""

    runs: tuple[PixelRun, ...]
    widths: ChannelWidths
    joins_steps: bool = True
    dim: int = 3

    def adjoint(self) -> "BlockProducts":
        """The same products on the channels of the adjoint map."""
        return replace(self, widths=self.widths.adjoint())

    def arrange(self, state: Tensor) -> Tensor:
        """Pixel by pixel, so that a run of pixels is one matrix."""
        return state.contiguous()

    def product(self, state: Tensor, operator: Tensor, rows: int, back: Tensor | None, factor: float) -> Tensor:
        """The centre tap everywhere, and the other taps added where they meet a pixel."""
        groups, pixels, batch, columns = state.shape
        taps = [tap.mT for tap in operator[:, :rows, :, :columns].unbind(2)]
        flat = state.reshape(groups, pixels * batch, columns)
        everywhere, *others = self.runs
        if back is None or factor == 0.0:
            image = torch.bmm(flat, taps[everywhere.tap])
        else:
            image = torch.baddbmm(fit_channels(back, 3, 1, rows).flatten(1, 2), flat, taps[everywhere.tap], beta=factor)
        for tap, target, source, length in others:
            part = flat.narrow(1, source * batch, length * batch)
            image.narrow(1, target * batch, length * batch).baddbmm_(part, taps[tap])
        return image.view(groups, pixels, batch, rows)

    def operator_grad(self, pairs: Sequence[StepPair], operator: Tensor, total: Tensor | None) -> Tensor:
        """lambda^T u for each run, all the steps in one product."""
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
                taps[tap].baddbmm_(here, right.narrow(1, source * rows, length * rows), alpha=sign, beta=beta)
                written.add(tap)
        assert total is not None
        return total
