"""Which channels matter: the first product needs only the inputs, the last only the outputs.

With two groups of three channels, of which the first two are read and the first one is kept::

    group      0        1
    channels   a b c    d e f     channels=3
    read       a b .    d e .     inputs=2
    kept       a . .    d . .     outputs=1

A tensor holds one row of these at a time: ``a b d e`` is read, and ``widen_channels`` makes ``a b 0 d e 0`` of it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ChannelWidths:
    """Each of the ``groups`` reads its first ``inputs`` and keeps its first ``outputs`` of ``channels``."""

    groups: int
    channels: int
    inputs: int
    outputs: int

    def of_one_group(self) -> "ChannelWidths":
        """The widths of a single group, for products that keep the groups apart along an axis of their own."""
        return ChannelWidths(1, self.channels, self.inputs, self.outputs)

    def adjoint(self) -> "ChannelWidths":
        """The widths of the adjoint map: what was read is kept, what was kept is read."""
        return ChannelWidths(self.groups, self.channels, self.outputs, self.inputs)


def narrow_channels(tensor: Tensor, dim: int, groups: int, channels: int) -> Tensor:
    """The first ``channels`` of each of the ``groups`` blocks along ``dim``; a view where one group allows it.

    >>> narrow_channels(torch.arange(6), 0, groups=2, channels=2)
    tensor([0, 1, 3, 4])
    """
    if tensor.shape[dim] == groups * channels:
        return tensor
    if groups == 1:
        return tensor.narrow(dim, 0, channels)
    return tensor.unflatten(dim, (groups, -1)).narrow(dim + 1, 0, channels).flatten(dim, dim + 1)


def widen_channels(tensor: Tensor, dim: int, groups: int, channels: int) -> Tensor:
    """The adjoint of :func:`narrow_channels`: zeros appended to each block up to ``channels``.

    >>> widen_channels(torch.tensor([1, 2, 3, 4]), 0, groups=2, channels=3)
    tensor([1, 2, 0, 3, 4, 0])
    """
    if tensor.shape[dim] == groups * channels:
        return tensor
    blocks = tensor.unflatten(dim, (groups, -1))
    shape = list(blocks.shape)
    shape[dim + 1] = channels - shape[dim + 1]
    return torch.cat([blocks, blocks.new_zeros(shape)], dim + 1).flatten(dim, dim + 1)


def fit_channels(tensor: Tensor, dim: int, groups: int, channels: int) -> Tensor:
    """Narrowed or widened to ``channels`` in each group."""
    resize = narrow_channels if tensor.shape[dim] > groups * channels else widen_channels
    return resize(tensor, dim, groups, channels)


def add_channels_(target: Tensor, source: Tensor, factor: float, dim: int, groups: int) -> None:
    """target += factor * source on the channels, counted from the first of each group, that both have."""
    if factor == 0.0:
        return
    if target.shape[dim] == source.shape[dim]:
        target.add_(source, alpha=factor)
        return
    common = min(target.shape[dim], source.shape[dim]) // groups
    pair = [t.unflatten(dim, (groups, -1)).narrow(dim + 1, 0, common) for t in (target, source)]
    pair[0].add_(pair[1], alpha=factor)
