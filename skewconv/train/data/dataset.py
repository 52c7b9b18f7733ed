"""Datasets as frozen values: images (N, C, H, W) uint8, memory-mapped, with labels; splits, and seeded batches."""

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from skewconv.choices import SplitName
from skewconv.config import TrainConfig, require
from skewconv.errors import ArgumentError, SkewconvError

Images: TypeAlias = npt.NDArray[np.uint8]
Labels: TypeAlias = npt.NDArray[np.int64]
Index: TypeAlias = npt.NDArray[np.int64]
_HOLD_OUT_SEED = 0


class DataError(SkewconvError):
    """A dataset that cannot be found, read or cached."""


class UnreachableError(DataError):
    """A server that did not answer."""


@dataclass(frozen=True)
class Augmentation:
    """Shifts by up to `padding` pixels, and mirroring, with `alternate` in every second epoch."""

    padding: int = 4
    flip: bool = True
    alternate: bool = False


@dataclass(frozen=True, eq=False)
class Split:
    """Some of the images in an array (N, C, H, W) uint8, and their labels (n,) int64; nothing is copied until `take`.

    `index` (n,) has the places of the split's own images (default: all), `files` their names where they are files.
    """

    images: Images
    labels: Labels
    files: tuple[str, ...] | None = None
    index: Any = None

    def __post_init__(self) -> None:
        if self.index is None:
            object.__setattr__(self, "index", np.arange(len(self.images)))

    def __len__(self) -> int:
        return len(self.index)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def take(self, index: Index) -> tuple[Images, Labels]:
        return np.take(self.images, self.index[index], axis=0), np.take(self.labels, index)

    def subset(self, index: Index) -> "Split":
        files = None if self.files is None else tuple(self.files[place] for place in index.tolist())
        return Split(self.images, self.labels[index], files, self.index[index])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a test split, with what a model and a recipe need to know of them.

    `mean` and `std` are per channel, over the training images scaled to [0, 1]; `augmentation` keeps the meaning of
    these images (a mirrored digit is no digit); `fingerprint` identifies the content.
    """

    name: str
    classes: tuple[str, ...]
    train: Split
    test: Split
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: Augmentation
    fingerprint: str

    def __post_init__(self) -> None:
        for split, examples in (("train", self.train), ("test", self.test)):
            if not len(examples):
                raise DataError(f"{self.name}: the {split} split is empty: at least one image is needed")
        if self.train.image_shape != self.test.image_shape:
            shapes = f"{self.train.image_shape} and {self.test.image_shape}"
            raise DataError(f"{self.name}: train and test images are {shapes}: make them alike")

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.train.image_shape

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.image_shape))
        return (
            f"Dataset({self.name!r}: {len(self.train)} + {len(self.test)} images {shape}, {len(self.classes)} classes)"
        )


@dataclass
class Entry:
    """A new entry of the cache: the arrays of a dataset, written straight to the disk, and what is said of them."""

    folder: Path
    classes: Sequence[str] = ()
    augmentation: Augmentation = Augmentation()
    files: dict[str, list[str]] = field(default_factory=dict)

    def images(self, split: str, shape: tuple[int, int, int, int]) -> Images:
        """A writable memory-mapped (N, C, H, W) uint8 array for the caller to fill."""
        path = self.folder / f"{split}_images.npy"
        images = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
        # Writing into a map whose blocks the disk does not have ends the process: they are taken now, which may fail.
        if hasattr(os, "posix_fallocate"):
            with open(path, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        return images

    def labels(self, split: str, labels: npt.ArrayLike, files: Sequence[str] = ()) -> None:
        np.save(self.folder / f"{split}_labels.npy", np.asarray(labels, dtype=np.int64), allow_pickle=False)
        if files:
            self.files[split] = list(files)


def file_digest(path: Path, algorithm: str) -> bytes:
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.digest()


def moments(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel in [0, 1], exact: from counts of the 256 values."""
    values = np.arange(256) / 255
    mean, std = [], []
    for channel in range(images.shape[1]):
        counts = sum(
            np.bincount(images[start : start + 4096, channel].reshape(-1), minlength=256)
            for start in range(0, len(images), 4096)
        )
        share = counts / max(1, np.sum(counts))
        centre = float(share @ values)
        mean.append(centre)
        std.append(float(np.sqrt(share @ (values - centre) ** 2)))
    return tuple(mean), tuple(std)


def stratified_split(
    keys: Sequence[str], labels: Sequence[int | str], fraction: float, seed: int
) -> tuple[list[int], list[int]]:
    """Indices of train and test: `fraction` of each class, at least one, by a hash of (seed, key), is for testing."""
    by_class: dict[int | str, list[int]] = defaultdict(list)
    for index, label in enumerate(labels):
        by_class[label].append(index)
    test: set[int] = set()
    for label, members in by_class.items():
        if len(members) < 2:
            raise DataError(
                f"class {label!r} has one example: a split needs at least two; add some or remove the class"
            )
        ranked = _by_hash(members, (f"{seed}/{keys[index]}" for index in members))
        test.update(ranked[: min(max(round(fraction * len(members)), 1), len(members) - 1)])
    return [index for index in range(len(keys)) if index not in test], sorted(test)


def hold_out(split: Split, count: int) -> tuple[Split, Split]:
    """The rest, and `count` images of all classes in proportion, the same for every seed; fewer are some of these."""
    turns = np.empty(len(split))
    for label in np.unique(split.labels):
        members = np.flatnonzero(split.labels == label).tolist()
        ranked = _by_hash(members, (f"{_HOLD_OUT_SEED}/{index}" for index in members))
        turns[ranked] = (np.arange(len(ranked)) + 0.5) / len(ranked)
    order = np.argsort(turns, kind="stable")
    return split.subset(np.sort(order[count:])), split.subset(np.sort(order[:count]))


def spread(split: Split, count: int | None) -> Split:
    """`count` images, evenly spread over the split (folders list one class after the other); all if None."""
    if count is None or count >= len(split):
        return split
    return split.subset(np.arange(count) * len(split) // count)


def _by_hash(members: Sequence[int], names: Iterable[str]) -> list[int]:
    digests = {index: blake2b(name.encode()).digest() for index, name in zip(members, names, strict=True)}
    return sorted(members, key=digests.__getitem__)


@dataclass(frozen=True, eq=False)
class Batches:
    """The batches of one epoch: (images (n, C, H, W) float32 in [0, 1], labels (n,) int64), on the device.

    Step s of an epoch is the same whether the epoch starts there or at 0, and all ranks' shares of it together, in the
    order of the ranks, are the batch one process would see, augmentation included; `batch_size` is that of all ranks.
    """

    split: Split
    batch_size: int
    _: KW_ONLY
    seed: int
    epoch: int = 0
    start_step: int = 0
    augment: Augmentation | None = None
    shuffle: bool = True
    drop_last: bool = True
    device: torch.device | str = "cpu"
    rank: int = 0
    world_size: int = 1

    @property
    def steps(self) -> int:
        full, rest = divmod(len(self.split), self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def __len__(self) -> int:
        return self.steps - self.start_step

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        count = len(self.split)
        order = torch.arange(count)
        if self.shuffle:
            order = torch.randperm(count, generator=seeded_generator(self.seed, self.epoch, "order"))
        for step in range(self.start_step, self.steps):
            yield self._batch(order[step * self.batch_size : (step + 1) * self.batch_size], step)

    def _batch(self, chosen: Tensor, step: int) -> tuple[Tensor, Tensor]:
        start = len(chosen) * self.rank // self.world_size
        share = slice(start, len(chosen) * (self.rank + 1) // self.world_size)
        # numpy gathers from the memory map; torch would warn that it is read-only.
        found = self.split.take(chosen[share].numpy())
        images, labels = (to_device(torch.from_numpy(values), torch.device(self.device)) for values in found)
        if self.augment is not None:
            # Drawn for the whole batch, on the CPU: the same on every device and for any number of processes.
            generator, padding = seeded_generator(self.seed, self.epoch, f"augment {step}"), self.augment.padding
            offsets = torch.randint(0, 2 * padding + 1, (len(chosen), 2), generator=generator)
            images = crop_at(images, offsets[share], padding)
            if self.augment.flip:
                mirrored = to_device(self._flips(chosen, generator)[share], images.device)
                images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
        return images.to(torch.float32).div_(255), labels

    def _flips(self, chosen: Tensor, generator: Generator) -> Tensor:
        """True for images of a batch to mirror: a coin each, or the coin of the first epoch turned over every epoch."""
        if self.augment is None or not self.augment.alternate:
            return torch.randint(0, 2, (len(chosen),), generator=generator).bool()
        first = torch.randint(0, 2, (len(self.split),), generator=seeded_generator(self.seed, 0, "first flips"))
        return first.bool()[chosen] ^ bool(self.epoch % 2)


@dataclass(frozen=True)
class Splits:
    """The images to train on, and those to evaluate on: the test split, or a validation split."""

    data: Dataset
    train: Split
    eval: Split
    name: SplitName


def make_splits(config: TrainConfig, data: Dataset) -> Splits:
    """The dataset's own splits, or its training images split in two; all of them give the mean and deviation."""
    count, batch = config.loading.holdout, config.loading.batch_size
    if count == 0:
        return Splits(data, data.train, data.test, "test")
    if (most := len(data.train) - batch) < count:
        raise ArgumentError(
            f"--holdout is {count}: of the {len(data.train)} training images of {data.name} at most {max(0, most)} can "
            f"be held out, so that a batch of {batch} is left to train on"
        )
    return Splits(data, *hold_out(data.train, count), "validation")


def epoch_batches(config: TrainConfig, splits: Splits, fabric: Any, *, epoch: int, start_step: int = 0) -> Batches:
    rest, processes = len(splits.train) % config.loading.batch_size, fabric.world_size
    rule = (
        f"off for {processes} processes: the last batch of an epoch has {rest} images, which they cannot share equally"
    )
    require(config.loading, "keep_last", not config.loading.keep_last or rest % processes == 0, rule)
    loading, own = config.loading, splits.data.augmentation
    padding = own.padding if loading.padding is None else loading.padding
    flip = own.flip if loading.flip is None else loading.flip
    augment = Augmentation(padding, flip, loading.alternate_flip)
    return Batches(
        splits.train,
        config.loading.batch_size,
        seed=config.seed,
        epoch=epoch,
        start_step=start_step,
        augment=augment if loading.augment else None,
        drop_last=not loading.keep_last,
        device=fabric.device,
        rank=fabric.global_rank,
        world_size=processes,
    )


def crop_at(images: Tensor, offsets: Tensor, padding: int) -> Tensor:
    """The images (N, C, H, W), padded with black and cut back to size from `offsets` (N, 2) on, 0 .. 2 padding."""
    if padding == 0:
        return images
    height, width = images.shape[2:]
    rows, columns = to_device(offsets, images.device).unbind(1)
    # Every window is a view of the padded images; one indexing picks one window an image.
    windows = F.pad(images, (padding,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(len(images), device=images.device), :, rows, columns]


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """The values on a device; from pinned memory a copy runs beside the computation, and the host waits for nothing."""
    if values.device.type != "cpu" or device.type in ("cpu", "mps"):
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def seeded_generator(seed: int, epoch: int, purpose: str) -> Generator:
    """A generator of its own for each purpose: a hash keeps neighbouring seeds and epochs apart."""
    digest = blake2b(f"{seed}/{epoch}/{purpose}".encode(), digest_size=8).digest()
    return Generator().manual_seed(int.from_bytes(digest, "little", signed=True))
