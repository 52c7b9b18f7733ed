"""Stratified splits that no library version can change."""

from collections import defaultdict
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from skewconv.errors import ArgumentError
from skewconv.train.data.dataset import Split, Subset
from skewconv.train.data.errors import DataError

_HOLD_OUT_SEED = 0


def stratified_split(
    keys: Sequence[str], labels: Sequence[int], fraction: float, seed: int
) -> tuple[list[int], list[int]]:
    """Indices of train and test: of each class the share `fraction`, chosen by a hash of (seed, key), goes to test.

    >>> stratified_split(list("abcdefgh"), [0, 0, 0, 0, 1, 1, 1, 1], fraction=0.25, seed=0)
    ([0, 2, 3, 4, 6, 7], [1, 5])

    Args:
        keys: one distinct name an example; the choice depends on it and not on the order.
        labels: one class an example.
        fraction: between 0 and 1; at least one example of each class goes to either side.
        seed: another seed, another split.
    """
    by_class: dict[int, list[int]] = defaultdict(list)
    for index, label in enumerate(labels):
        by_class[label].append(index)
    test: set[int] = set()
    for label, members in by_class.items():
        if len(members) < 2:
            raise DataError(f"class {label} has one example: a split needs at least two; add some or remove the class")
        ranked = sorted(members, key=lambda index: blake2b(f"{seed}/{keys[index]}".encode()).digest())
        test.update(ranked[: min(max(round(fraction * len(members)), 1), len(members) - 1)])
    return [index for index in range(len(keys)) if index not in test], sorted(test)


def hold_out(split: Split, count: int) -> tuple[Subset, Subset]:
    """The rest, and `count` images of all classes in proportion, the same ones for every seed of training.

    A smaller count holds out some of the same images.

    >>> rest, held = hold_out(Split(np.zeros((8, 1, 2, 2), np.uint8), np.array([0, 0, 0, 0, 1, 1, 1, 1])), 2)
    >>> rest.index.tolist(), held.index.tolist()
    ([0, 1, 2, 4, 6, 7], [3, 5])

    Args:
        split: the training images.
        count: how many to hold out; at least one, and one is left.
    """
    if not 0 < count < len(split):
        raise ArgumentError(f"count is {count}: 1 to {len(split) - 1} of {len(split)} images can be held out")
    labels = split.labels
    turns = np.empty(len(split))
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label).tolist()
        ranked = sorted(members, key=lambda index: blake2b(f"{_HOLD_OUT_SEED}/{index}".encode()).digest())
        turns[ranked] = (np.arange(len(ranked)) + 0.5) / len(ranked)
    order = np.argsort(turns, kind="stable")
    return split.subset(np.sort(order[count:])), split.subset(np.sort(order[:count]))
