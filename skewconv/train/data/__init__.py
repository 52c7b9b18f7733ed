"""Datasets, checked and memory-mapped, and their seeded, augmented batches."""

from skewconv.train.data.augment import random_crop, random_flip
from skewconv.train.data.batches import Batches
from skewconv.train.data.cache import cache_dir
from skewconv.train.data.dataset import (
    ArchiveError,
    Augmentation,
    DataError,
    Dataset,
    Examples,
    Split,
    Subset,
    UnreachableError,
    hold_out,
    spread,
)
from skewconv.train.data.load import dataset_from_arrays, load_dataset

__all__ = [
    "ArchiveError",
    "Augmentation",
    "Batches",
    "DataError",
    "Dataset",
    "Examples",
    "Split",
    "Subset",
    "UnreachableError",
    "cache_dir",
    "dataset_from_arrays",
    "hold_out",
    "load_dataset",
    "random_crop",
    "random_flip",
    "spread",
]
