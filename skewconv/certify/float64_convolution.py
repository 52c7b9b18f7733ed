"""Float64 convolutions as few large matrix products, which PyTorch's own float64 convolutions on a CPU are not.

States are pixel-major, (*size, batch, channels): a shift along the first axes is then a slice. The taps along the last
axis lie side by side in the channels, so that a 3 x 3 filter costs three products.
"""

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from skewconv.choices import PaddingMode
from skewconv.ops.convolution import Geometry
from skewconv.ops.filters import odd_filter


def to_pixels(x: Tensor) -> Tensor:
    """(batch, channels, *size) -> (*size, batch, channels)."""
    return x.permute(*range(2, x.dim()), 0, 1).contiguous()


def from_pixels(state: Tensor) -> Tensor:
    """(*size, batch, channels) -> (batch, channels, *size)."""
    axes = state.dim() - 2
    return state.permute(axes, axes + 1, *range(axes)).contiguous()


class Float64Convolution:
    """state -> W * state for one group of channels of a filter.

    Args:
        weight: (rows, columns, *kernel), float64, odd sizes.
        geometry: padding and dilation; its groups are not looked at.
    """

    def __init__(self, weight: Tensor, geometry: Geometry) -> None:
        self.geometry = geometry
        rows, columns, *leading, _ = weight.shape
        # (*leading taps, taps of the last axis, columns, rows)
        self.taps = weight.permute(*range(2, weight.dim()), 1, 0).contiguous()
        self.leading, self.rows, self.columns = leading, rows, columns

    def __call__(self, state: Tensor, rows: int, back: Tensor | None = None) -> Tensor:
        """The first ``rows`` channels of W * state, plus ``back``; the columns are as many as the state has."""
        *size, batch, columns = state.shape
        wide = self._side_by_side(state)
        circular = self.geometry.padding_mode == "circular"
        # In any order of addition each output is a sum of at most taps * columns products, and of back.
        total = (
            state.new_zeros(*size, batch, rows) if back is None else back.clone(memory_format=torch.contiguous_format)
        )
        for tap in product(*map(range, self.leading)):
            matrix = self.taps[tap][:, :columns, :rows].reshape(-1, rows)
            shifts = [d * (t - k // 2) for t, k, d in zip(tap, self.leading, self.geometry.dilation, strict=False)]
            if circular:
                moved = wide.roll([-s for s in shifts], list(range(len(shifts)))) if any(shifts) else wide
                total.view(-1, rows).addmm_(moved.reshape(-1, matrix.shape[0]), matrix)
            elif all(abs(s) < n for s, n in zip(shifts, size, strict=False)):
                source, target = wide, total
                for axis, (s, n) in enumerate(zip(shifts, size, strict=False)):
                    source = source.narrow(axis, max(0, s), n - abs(s))
                    target = target.narrow(axis, max(0, -s), n - abs(s))
                _accumulate(target, source, matrix)
        return total

    def _side_by_side(self, state: Tensor) -> Tensor:
        """(..., n, batch, c) -> (..., n, batch, taps c): what each tap of the last axis reads."""
        taps, step = self.geometry.kernel[-1], self.geometry.dilation[-1]
        axis, n = state.dim() - 3, state.shape[-3]
        copies = []
        for t in range(taps):
            shift = step * (t - taps // 2)
            if shift == 0:
                copies.append(state)
            elif self.geometry.padding_mode == "circular":
                copies.append(state.roll(-shift, axis))
            elif abs(shift) >= n:
                copies.append(torch.zeros_like(state))
            else:
                blank = torch.zeros_like(state.narrow(axis, 0, abs(shift)))
                kept = state.narrow(axis, max(0, shift), n - abs(shift))
                copies.append(torch.cat([kept, blank] if shift > 0 else [blank, kept], axis))
        return copies[0] if taps == 1 else torch.cat(copies, -1)


def _accumulate(target: Tensor, source: Tensor, matrix: Tensor) -> None:
    """target += source @ matrix; slices along one leading axis are contiguous, along more of them they are not."""
    if target.is_contiguous():
        target.view(-1, target.shape[-1]).addmm_(source.reshape(-1, source.shape[-1]), matrix)
    else:
        target.add_(source @ matrix)


def float64_convolution(weight: Tensor, padding_mode: PaddingMode) -> Callable[[Tensor], Tensor]:
    """x -> W * x, (n, c_in, *size) -> (n, c_out, *size), for a filter (c_out, c_in, *kernel) of any sizes."""
    filter_ = odd_filter(weight.detach())
    geometry = Geometry.of(tuple(filter_.shape[2:]), padding_mode, 1, 1)
    convolution = Float64Convolution(filter_, geometry)

    return lambda x: from_pixels(convolution(to_pixels(x), filter_.shape[0]))
