"""Datasets, checked and memory-mapped, and their seeded, augmented batches."""

from skewconv.train.data.dataset import (
    ArchiveError,
    Augmentation,
    Batches,
    DataError,
    Dataset,
    Split,
    Splits,
    UnreachableError,
    hold_out,
    make_splits,
    spread,
)
from skewconv.train.data.load import cache_dir, dataset_from_arrays, load_data, load_dataset

__all__ = [
    "ArchiveError",
    "Augmentation",
    "Batches",
    "DataError",
    "Dataset",
    "Split",
    "Splits",
    "UnreachableError",
    "cache_dir",
    "dataset_from_arrays",
    "hold_out",
    "load_data",
    "load_dataset",
    "make_splits",
    "spread",
]
