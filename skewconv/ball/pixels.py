"""Pixels and channels: what a convolution reads, and pixels that become channels. Nothing is computed here."""

import math
from collections.abc import Sequence
from itertools import product as choices

import numpy as np

from skewconv.ball.exact import Floats, Integers


def patches(x: Integers, kernel: Sequence[int], dilation: Sequence[int], padding_mode: str) -> Integers:
    """(n, c, *size) -> (n, *size, taps c): what each tap of a kernel reads, side by side."""
    size = x.shape[2:]
    last = np.moveaxis(x, 1, -1)
    columns = []
    for tap in choices(*map(range, kernel)):
        shifts = [d * (t - (k - 1) // 2) for t, k, d in zip(tap, kernel, dilation, strict=True)]
        moved = np.roll(last, [-s for s in shifts], tuple(range(1, 1 + len(size))))
        if padding_mode == "zeros":
            for axis, (s, n) in enumerate(zip(shifts, size, strict=True), 1):
                outside = [slice(None)] * last.ndim
                outside[axis] = slice(max(0, n - s), None) if s > 0 else slice(0, min(n, -s))
                moved[tuple(outside)] = 0
        columns.append(moved)
    return np.concatenate(columns, -1)


def unshuffled(x: Integers, stride: Sequence[int]) -> Integers:
    """Pixels become channels: (n, c, *size) -> (n, c prod(stride), *size / stride), offsets in row-major order."""
    parts = [x]
    for axis, s in enumerate(stride, 2):
        parts = [part[(slice(None),) * axis + (slice(offset, None, s),)] for part in parts for offset in range(s)]
    return np.stack(parts, 2).reshape(x.shape[0], -1, *parts[0].shape[2:])


def shuffled(y: Integers, stride: Sequence[int]) -> Integers:
    """The reverse of :func:`unshuffled`."""
    size = tuple(n * s for n, s in zip(y.shape[2:], stride, strict=True))
    channels = y.shape[1] // math.prod(stride)
    result = np.empty((len(y), channels, *size), dtype=y.dtype)
    split = y.reshape(len(y), channels, math.prod(stride), *y.shape[2:])
    for number, offsets in enumerate(choices(*map(range, stride))):
        place = (slice(None), slice(None), *(slice(o, None, s) for o, s in zip(offsets, stride, strict=True)))
        result[place] = split[:, :, number]
    return result


def as_matrix(block: Floats) -> Floats:
    """(c_out, c_in, *kernel) -> (taps c_in, c_out)."""
    flat = block.reshape(*block.shape[:2], -1)
    return np.ascontiguousarray(flat.transpose(2, 1, 0).reshape(-1, block.shape[0]))


def padded_channels(x: Integers, channels: int) -> Integers:
    """Channels of zeros after those that are there."""
    return np.concatenate([x, np.zeros((len(x), channels - x.shape[1], *x.shape[2:]), dtype=x.dtype)], 1)
