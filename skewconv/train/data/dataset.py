"""Datasets as frozen values: images in (N, C, H, W) uint8, memory-mapped, and their labels."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from skewconv.errors import ArgumentError

Images: TypeAlias = npt.NDArray[np.uint8]
Labels: TypeAlias = npt.NDArray[np.int64]
Index: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Augmentation:
    """What a random copy of a training image may be: shifted by up to `padding` pixels, and mirrored.

    With `alternate` it is mirrored in every second epoch, and not at random.
    """

    padding: int = 4
    flip: bool = True
    alternate: bool = False

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ArgumentError(f"padding is {self.padding}: it must be 0 (no crop) or more")


@dataclass(frozen=True, eq=False)
class Split:
    """Images (N, C, H, W) uint8 and labels (N,) int64, both read-only; where the images are files, their names too."""

    images: Images
    labels: Labels
    files: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        if images.ndim != 4 or images.dtype != np.uint8:
            raise ArgumentError(f"images are {_describe(images)}: (N, C, H, W) uint8 is needed")
        if labels.shape != images.shape[:1] or labels.dtype != np.int64:
            raise ArgumentError(f"labels are {_describe(labels)}: ({len(images)},) int64 is needed")
        if self.files is not None and len(self.files) != len(images):
            raise ArgumentError(f"{len(self.files)} files for {len(images)} images: as many of each are needed")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def take(self, index: Index) -> tuple[Images, Labels]:
        """Copies of the images and labels at these places, gathered from the memory map."""
        return np.take(self.images, index, axis=0), np.take(self.labels, index)

    def subset(self, index: Index) -> "Subset":
        """The part at these places; nothing is copied."""
        return Subset(self, index)


@dataclass(frozen=True, eq=False)
class Subset:
    """Some images of a split, by their places in it: (n,) int64. They stay where they are until they are taken."""

    whole: Split
    index: Index

    def __len__(self) -> int:
        return len(self.index)

    @property
    def files(self) -> tuple[str, ...] | None:
        """The names of the files of the images, where they are files."""
        return None if self.whole.files is None else tuple(self.whole.files[place] for place in self.index.tolist())

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return self.whole.image_shape

    def take(self, index: Index) -> tuple[Images, Labels]:
        """Copies of the images and labels at these places of the subset."""
        return self.whole.take(self.index[index])

    def subset(self, index: Index) -> "Subset":
        """The part at these places of the subset; nothing is copied."""
        return Subset(self.whole, self.index[index])


Examples: TypeAlias = Split | Subset


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a test split, and what a model and a recipe need to know of them.

    Attributes:
        name: as given to `load_dataset`.
        classes: their names; label k is classes[k].
        train: the training split.
        test: the test split.
        mean: per channel, over the training images scaled to [0, 1].
        std: likewise. Its mean is the single deviation that networks divide by (0.2507 on CIFAR-10).
        augmentation: one that keeps the meaning of these images (a mirrored digit is no digit).
        fingerprint: names the content; equal fingerprints, equal arrays.
    """

    name: str
    classes: tuple[str, ...]
    train: Split
    test: Split
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: Augmentation
    fingerprint: str

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return self.train.image_shape

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.image_shape))
        return (
            f"Dataset({self.name!r}: {len(self.train)} + {len(self.test)} images {shape}, {len(self.classes)} classes)"
        )


def _describe(array: npt.NDArray[Any]) -> str:
    return f"{array.shape} {array.dtype}"
