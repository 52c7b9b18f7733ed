"""Datasets, checked and memory-mapped, and their seeded, augmented batches."""

from skewconv.train.data.augment import random_crop, random_flip
from skewconv.train.data.batches import Batches
from skewconv.train.data.cache import cache_dir
from skewconv.train.data.dataset import Augmentation, Dataset, Split
from skewconv.train.data.errors import ArchiveError, DataError, UnreachableError
from skewconv.train.data.load import DATASETS, load_dataset

__all__ = [
    "DATASETS",
    "ArchiveError",
    "Augmentation",
    "Batches",
    "DataError",
    "Dataset",
    "Split",
    "UnreachableError",
    "cache_dir",
    "load_dataset",
    "random_crop",
    "random_flip",
]
