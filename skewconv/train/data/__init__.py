"""Datasets, checked and memory-mapped, and their seeded, augmented batches."""

from skewconv.train.data.arrays import dataset_from_arrays
from skewconv.train.data.augment import random_crop, random_flip
from skewconv.train.data.batches import Batches
from skewconv.train.data.cache import cache_dir
from skewconv.train.data.dataset import Augmentation, Dataset, Examples, Split, Subset
from skewconv.train.data.errors import ArchiveError, DataError, UnreachableError
from skewconv.train.data.load import load_dataset
from skewconv.train.data.splits import hold_out

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
]
