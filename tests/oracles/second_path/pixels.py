"""What activations and rearrangements do to tensors (n, c, *size), written down a second time."""

import math
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def unshuffled(x: Tensor, stride: Any) -> Tensor:
    """Channels (c, offsets) of each block of pixels, one axis at a time."""
    steps = stride if isinstance(stride, tuple) else (stride,) * (x.dim() - 2)
    parts = [x]
    for axis, s in enumerate(steps):
        every = [[slice(None)] * (2 + axis) + [slice(offset, None, s)] for offset in range(s)]
        parts = [part[tuple(index)] for part in parts for index in every]
    return torch.stack(parts, 2).flatten(1, 2)


def shuffled(y: Tensor, stride: tuple[int, ...]) -> Tensor:
    """The reverse of :func:`unshuffled`: offsets of each block of pixels from channels (c, offsets)."""
    size = [n * s for n, s in zip(y.shape[2:], stride, strict=True)]
    blocks = y.unflatten(1, (-1, math.prod(stride)))
    x = y.new_empty(len(y), blocks.shape[1], *size)
    for number, offsets in enumerate(product(*map(range, stride))):
        place: tuple[slice, ...] = tuple(slice(o, None, s) for o, s in zip(offsets, stride, strict=True))
        x[(slice(None), slice(None)) + place] = blocks[:, :, number]  # noqa: RUF005
    return x


def bordered(x: Tensor, pads: list[int] | tuple[int, ...], *, circular: bool) -> Tensor:
    """The image with a border, its widths given as to ``F.pad``: zeros, or the image again, as often as it takes."""
    if not circular:
        return F.pad(x, tuple(pads))
    for axis, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=True), 1):
        n = x.shape[-axis]
        x = x.index_select(-axis, torch.arange(-before, n + after, device=x.device) % n)
    return x


def sorted_halves(x: Tensor, dim: int) -> list[Tensor]:
    pair = torch.stack(x.chunk(2, dim)).sort(0, descending=True)[0]
    return [pair[0], pair[1]]


def folded(x: Tensor, angles: Tensor, dim: int) -> Tensor:
    a, b = x.chunk(2, dim)
    for theta in angles:
        half = (theta / 2).view(-1, *(1,) * (x.dim() - 1 - dim % x.dim()))
        inner = a * half.sin() - b * half.cos()
        below = inner < 0
        a, b = (
            torch.where(below, a - 2 * inner * half.sin(), a),
            torch.where(below, b + 2 * inner * half.cos(), b),
        )
    return torch.cat([a, b], dim)
