"""Datasets as frozen values: images (N, C, H, W) uint8, memory-mapped, their labels, and reproducible splits."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from skewconv.errors import ArgumentError, SkewconvError

Images: TypeAlias = npt.NDArray[np.uint8]
Labels: TypeAlias = npt.NDArray[np.int64]
Index: TypeAlias = npt.NDArray[np.int64]
_HOLD_OUT_SEED = 0


class DataError(SkewconvError):
    """A dataset that cannot be found, read or cached."""


class ArchiveError(DataError):
    """An archive, or a file in it, that is damaged or not the expected one."""


class UnreachableError(DataError):
    """A server that did not answer."""


@dataclass(frozen=True)
class Augmentation:
    """Random changes of training images: shifts by up to `padding` pixels, and mirroring.

    With `alternate`, images are mirrored in every second epoch instead of at random.
    """

    padding: int = 4
    flip: bool = True
    alternate: bool = False

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ArgumentError(f"padding is {self.padding}: it must be 0 (no crop) or more")


@dataclass(frozen=True, eq=False)
class Split:
    """Some of the images in an array; nothing is copied until `take`.

    Attributes:
        images: (N, C, H, W) uint8.
        labels: (n,) int64.
        files: file names, where the images are files.
        index: (n,) int64, the places of the split's own images in `images` (default: all).
    """

    images: Images
    labels: Labels
    files: tuple[str, ...] | None = None
    index: Any = None

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        if images.ndim != 4 or images.dtype != np.uint8:
            raise ArgumentError(f"images are {images.shape} {images.dtype}: (N, C, H, W) uint8 is needed")
        if self.index is None:
            object.__setattr__(self, "index", np.arange(len(images)))
        if labels.shape != self.index.shape or labels.dtype != np.int64:
            raise ArgumentError(f"labels are {labels.shape} {labels.dtype}: ({len(self)},) int64 is needed")
        if self.files is not None and len(self.files) != len(self):
            raise ArgumentError(f"{len(self.files)} files for {len(self)} images: as many of each are needed")

    def __len__(self) -> int:
        return len(self.index)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def take(self, index: Index) -> tuple[Images, Labels]:
        """Copies of the images and labels at these places of the split, gathered from the memory map."""
        return np.take(self.images, self.index[index], axis=0), np.take(self.labels, index)

    def subset(self, index: Index) -> "Split":
        """A view of the images at these places of the split."""
        files = None if self.files is None else tuple(self.files[place] for place in index.tolist())
        return Split(self.images, self.labels[index], files, self.index[index])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a test split, with what a model and a recipe need to know of them.

    Attributes:
        name: as given to `load_dataset`.
        classes: class names; label k is classes[k].
        train, test: the splits.
        mean, std: per channel, over the training images scaled to [0, 1]. The mean of std is the single
            deviation (0.2507 on CIFAR-10).
        augmentation: one that keeps the meaning of these images (a mirrored digit is no digit).
        fingerprint: identifies the content.
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
            for label in (int(examples.labels.min()), int(examples.labels.max())):
                if not 0 <= label < len(self.classes):
                    allowed = f"0 to {len(self.classes) - 1} are allowed, one for each class"
                    raise DataError(f"{self.name}, {split}: label {label} is out of range: {allowed}")
        if self.train.image_shape != self.test.image_shape:
            shapes = f"{self.train.image_shape} and {self.test.image_shape}"
            raise DataError(f"{self.name}: train and test images are {shapes}: make them alike")

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return self.train.image_shape

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.image_shape))
        return (
            f"Dataset({self.name!r}: {len(self.train)} + {len(self.test)} images {shape}, {len(self.classes)} classes)"
        )


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
    """Indices of train and test: the share `fraction` of each class, chosen by a hash of (seed, key), is for testing.

    >>> stratified_split(list("abcdefgh"), [0, 0, 0, 0, 1, 1, 1, 1], fraction=0.25, seed=0)
    ([0, 2, 3, 4, 6, 7], [1, 5])

    Args:
        keys: a distinct name for each example; the choice depends on it and not on the order.
        labels: the class of each example, by number or name.
        fraction: between 0 and 1; at least one example of each class goes to either side.
        seed: of the hash.
    """
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
    """The rest, and `count` validation images of all classes in proportion, the same for every seed of training.

    A smaller count holds out some of the same images.

    >>> rest, held = hold_out(Split(np.zeros((8, 1, 2, 2), np.uint8), np.array([0, 0, 0, 0, 1, 1, 1, 1])), 2)
    >>> rest.index.tolist(), held.index.tolist()
    ([0, 1, 2, 4, 6, 7], [3, 5])
    """
    if not 0 < count < len(split):
        raise ArgumentError(f"count is {count}: 1 to {len(split) - 1} of {len(split)} images can be held out")
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
