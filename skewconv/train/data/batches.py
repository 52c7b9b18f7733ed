"""The batches of an epoch as a pure function of seed, epoch and step: what resuming and sharding need."""

from collections.abc import Iterator
from hashlib import blake2b

import torch
from torch import Generator, Tensor

from skewconv.errors import ArgumentError
from skewconv.train.data.augment import crop_at, crop_offsets, flip_choices, flip_where, to_device
from skewconv.train.data.dataset import Augmentation, Examples


class Batches:
    """The batches of one epoch: (images (n, C, H, W) float32 in [0, 1], labels (n,) int64), on the device.

    Step s of an epoch is the same whether the epoch starts there or at 0, and all ranks' shares of it together, in the
    order of the ranks, are the batch one process would see, augmentation included.

    >>> import numpy as np
    >>> from skewconv.train.data import Split
    >>> split = Split(np.zeros((10, 1, 8, 8), np.uint8), np.arange(10))
    >>> [labels.tolist() for _, labels in Batches(split, 4, seed=0, epoch=0, shuffle=False, drop_last=False)]
    [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]

    Args:
        split: the images.
        batch_size: of all ranks together.
        seed: of the run.
        epoch: which epoch, from 0.
        start_step: how many batches of the epoch to leave out: those already trained on.
        augment: the random changes; True stands for crop with padding 4 and flip, False for none.
        shuffle: False keeps the order of the split.
        drop_last: whether to leave out a last batch smaller than the others.
        device: where the batches shall lie; augmentation runs there.
        rank: which share of each batch to yield.
        world_size: into how many shares a batch is cut; it divides batch_size. The shares of a smaller last batch
            differ by at most one image, and may be empty.
    """

    def __init__(
        self,
        split: Examples,
        batch_size: int,
        *,
        seed: int,
        epoch: int = 0,
        start_step: int = 0,
        augment: Augmentation | bool = True,
        shuffle: bool = True,
        drop_last: bool = True,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if batch_size < 1 or world_size < 1 or batch_size % world_size:
            raise ArgumentError(
                f"batch_size is {batch_size} for {world_size} processes: it must be a positive multiple of their number"
            )
        if not 0 <= rank < world_size:
            raise ArgumentError(f"rank is {rank}: 0 to {world_size - 1} are allowed")
        if epoch < 0:
            raise ArgumentError(f"epoch is {epoch}: it counts from 0")
        if drop_last and batch_size > len(split):
            raise ArgumentError(
                f"batch_size is {batch_size}, but there are {len(split)} images: make it smaller, or drop_last=False"
            )
        full, rest = divmod(len(split), batch_size)
        #: batches in the whole epoch
        self.steps = full + (rest > 0 and not drop_last)
        if not 0 <= start_step <= self.steps:
            raise ArgumentError(f"start_step is {start_step}: 0 to {self.steps} are allowed, the batches of an epoch")
        self.split, self.batch_size, self.seed, self.epoch, self.start_step = split, batch_size, seed, epoch, start_step
        self.augmentation = {True: Augmentation(), False: None}[augment] if isinstance(augment, bool) else augment
        self.shuffle, self.device, self.rank, self.world_size = shuffle, torch.device(device), rank, world_size

    def __len__(self) -> int:
        return self.steps - self.start_step

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = self._order()
        for step in range(self.start_step, self.steps):
            yield self._batch(order[step * self.batch_size : (step + 1) * self.batch_size], step)

    def _order(self) -> Tensor:
        if not self.shuffle:
            return torch.arange(len(self.split))
        return torch.randperm(len(self.split), generator=seeded_generator(self.seed, self.epoch, "order"))

    def _batch(self, chosen: Tensor, step: int) -> tuple[Tensor, Tensor]:
        start = len(chosen) * self.rank // self.world_size
        share = slice(start, len(chosen) * (self.rank + 1) // self.world_size)
        index = chosen[share].numpy()
        # numpy gathers from the memory map; torch would warn that it is read-only.
        images, labels = (to_device(torch.from_numpy(values), self.device) for values in self.split.take(index))
        if self.augmentation is not None:
            # Drawn for the whole batch, on the CPU: the same on every device and for any number of processes.
            generator = seeded_generator(self.seed, self.epoch, f"augment {step}")
            padding = self.augmentation.padding
            images = crop_at(images, crop_offsets(len(chosen), padding, generator)[share], padding)
            if self.augmentation.flip:
                images = flip_where(images, self._flips(chosen, generator)[share])
        return images.to(torch.float32).div_(255), labels

    def _flips(self, chosen: Tensor, generator: Generator) -> Tensor:
        """Which images of a batch are mirrored: a coin each, or the coin of the first epoch turned over every epoch."""
        assert self.augmentation is not None
        if not self.augmentation.alternate:
            return flip_choices(len(chosen), generator)
        first = flip_choices(len(self.split), seeded_generator(self.seed, 0, "first flips"))
        return first[chosen] ^ bool(self.epoch % 2)


def seeded_generator(seed: int, epoch: int, purpose: str) -> Generator:
    """A generator of its own for each purpose: a hash keeps neighbouring seeds and epochs apart."""
    digest = blake2b(f"{seed}/{epoch}/{purpose}".encode(), digest_size=8).digest()
    return Generator().manual_seed(int.from_bytes(digest, "little", signed=True))
