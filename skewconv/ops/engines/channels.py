"""Which channels matter: the first product needs only the inputs, the last only the outputs."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Cut:
    """Each of the ``groups`` reads its first ``inputs`` and keeps its first ``outputs`` of ``channels``."""

    groups: int
    channels: int
    inputs: int
    outputs: int

    def adjoint(self) -> "Cut":
        """The cut of the adjoint map: what was read is kept, what was kept is read."""
        return Cut(self.groups, self.channels, self.outputs, self.inputs)


def narrow(tensor: Tensor, dim: int, groups: int, channels: int) -> Tensor:
    """The first ``channels`` of each of the ``groups`` blocks along ``dim``; a view where one group allows it."""
    if tensor.shape[dim] == groups * channels:
        return tensor
    if groups == 1:
        return tensor.narrow(dim, 0, channels)
    return tensor.unflatten(dim, (groups, -1)).narrow(dim + 1, 0, channels).flatten(dim, dim + 1)


def widen(tensor: Tensor, dim: int, groups: int, channels: int) -> Tensor:
    """The adjoint of :func:`narrow`: zeros appended to each block up to ``channels``."""
    if tensor.shape[dim] == groups * channels:
        return tensor
    blocks = tensor.unflatten(dim, (groups, -1))
    shape = list(blocks.shape)
    shape[dim + 1] = channels - shape[dim + 1]
    return torch.cat([blocks, blocks.new_zeros(shape)], dim + 1).flatten(dim, dim + 1)


def fit(tensor: Tensor, dim: int, groups: int, channels: int) -> Tensor:
    """Narrowed or widened to ``channels`` in each group."""
    resize = narrow if tensor.shape[dim] > groups * channels else widen
    return resize(tensor, dim, groups, channels)


def add_(target: Tensor, source: Tensor, factor: float, dim: int, groups: int) -> None:
    """target += factor * source on the channels, counted from the first of each group, that both have."""
    if factor == 0.0:
        return
    if target.shape[dim] == source.shape[dim]:
        target.add_(source, alpha=factor)
        return
    common = min(target.shape[dim], source.shape[dim]) // groups
    pair = [t.unflatten(dim, (groups, -1)).narrow(dim + 1, 0, common) for t in (target, source)]
    pair[0].add_(pair[1], alpha=factor)
