"""A stratified split that no library version can change."""

from collections import defaultdict
from collections.abc import Sequence
from hashlib import blake2b

from skewconv.train.data.errors import DataError


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
