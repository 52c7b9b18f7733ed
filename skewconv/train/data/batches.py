"""The batches of an epoch as a pure function of seed, epoch and step: what resuming and sharding need."""

from collections.abc import Iterator
from hashlib import blake2b

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from skewconv.errors import ArgumentError
from skewconv.train.data.dataset import Augmentation, Split


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
        epoch: number of the epoch, from 0.
        start_step: number of batches at the start of the epoch to leave out.
        augment: random changes of the images; they run on the device.
        shuffle: False keeps the order of the split.
        drop_last: leave out a last batch smaller than the others.
        device: of the batches.
        rank, world_size: the share of each batch to yield. `world_size` divides `batch_size`; the shares of a smaller
            last batch differ by at most one image, and may be empty.
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        *,
        seed: int,
        epoch: int = 0,
        start_step: int = 0,
        augment: Augmentation | None = None,
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
        self.augment, self.shuffle, self.device = augment, shuffle, torch.device(device)
        self.rank, self.world_size = rank, world_size

    def __len__(self) -> int:
        return self.steps - self.start_step

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        count = len(self.split)
        order = torch.randperm(count, generator=self._generator("order")) if self.shuffle else torch.arange(count)
        for step in range(self.start_step, self.steps):
            yield self._batch(order[step * self.batch_size : (step + 1) * self.batch_size], step)

    def _generator(self, purpose: str) -> Generator:
        return seeded_generator(self.seed, self.epoch, purpose)

    def _batch(self, chosen: Tensor, step: int) -> tuple[Tensor, Tensor]:
        start = len(chosen) * self.rank // self.world_size
        share = slice(start, len(chosen) * (self.rank + 1) // self.world_size)
        # numpy gathers from the memory map; torch would warn that it is read-only.
        found = self.split.take(chosen[share].numpy())
        images, labels = (to_device(torch.from_numpy(values), self.device) for values in found)
        if self.augment is not None:
            # Drawn for the whole batch, on the CPU: the same on every device and for any number of processes.
            generator, padding = self._generator(f"augment {step}"), self.augment.padding
            offsets = torch.randint(0, 2 * padding + 1, (len(chosen), 2), generator=generator)
            images = crop_at(images, offsets[share], padding)
            if self.augment.flip:
                images = flip_where(images, self._flips(chosen, generator)[share])
        return images.to(torch.float32).div_(255), labels

    def _flips(self, chosen: Tensor, generator: Generator) -> Tensor:
        """True for images of a batch to mirror: a coin each, or the coin of the first epoch turned over every epoch."""
        if self.augment is None or not self.augment.alternate:
            return _coins(len(chosen), generator)
        first = _coins(len(self.split), seeded_generator(self.seed, 0, "first flips"))
        return first[chosen] ^ bool(self.epoch % 2)


def crop_at(images: Tensor, offsets: Tensor, padding: int) -> Tensor:
    """The images (N, C, H, W), padded with black and cut back to their size.

    Args:
        images: (N, C, H, W).
        offsets: (N, 2) row and column of each cut, 0 .. 2 padding; `padding` itself leaves an image where it is.
        padding: pixels on each side.
    """
    if padding == 0:
        return images
    height, width = images.shape[2:]
    rows, columns = to_device(offsets, images.device).unbind(1)
    # Every window is a view of the padded images; one indexing picks one window an image.
    windows = F.pad(images, (padding,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(len(images), device=images.device), :, rows, columns]


def flip_where(images: Tensor, choices: Tensor) -> Tensor:
    """The images (N, C, H, W), mirrored where the choice (N,) is true."""
    return torch.where(to_device(choices, images.device)[:, None, None, None], images.flip(3), images)


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """The values on a device; from pinned memory a copy runs beside the computation, and the host waits for nothing."""
    if values.device.type != "cpu" or device.type in ("cpu", "mps"):
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def seeded_generator(seed: int, epoch: int, purpose: str) -> Generator:
    """A generator of its own for each purpose: a hash keeps neighbouring seeds and epochs apart."""
    digest = blake2b(f"{seed}/{epoch}/{purpose}".encode(), digest_size=8).digest()
    return Generator().manual_seed(int.from_bytes(digest, "little", signed=True))


def _coins(count: int, generator: Generator) -> Tensor:
    return torch.randint(0, 2, (count,), generator=generator).bool()
