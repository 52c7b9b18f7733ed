"""Claim: a batch of 128 CIFAR images, gathered, cropped, mirrored and scaled, costs less than 5 ms on one CPU core.

A LipConvnet-5 training step of that batch takes 1.5 s and more on two cores, so that loading is well under 3% of it
(45 ms). Side by side: the whole-batch code of `skewconv.train.data.Batches` against a loop over the images that does
the same with slices. One thread, memory-mapped uint8 images (50000, 3, 32, 32), 200 batches, median and maximum.

Run: python benchmarks/bench_data.py
"""

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from skewconv.train.data import Augmentation, Batches, Split

COUNT, BATCH, REPEATS = 50_000, 128, 200
CLAIM_MS = 5.0


def looped(split: Split) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The same batches made one image at a time."""
    order = torch.randperm(len(split)).tolist()
    for start in range(0, len(order) - BATCH + 1, BATCH):
        images = []
        for index in order[start : start + BATCH]:
            padded = F.pad(torch.from_numpy(np.array(split.images[index])), (4, 4, 4, 4))
            row, column, mirrored = torch.randint(0, 9, (3,)).tolist()
            image = padded[:, row : row + 32, column : column + 32]
            images.append((image.flip(2) if mirrored % 2 else image).float() / 255)
        yield torch.stack(images), torch.from_numpy(split.labels[order[start : start + BATCH]])


def milliseconds(batches: Iterator[object]) -> list[float]:
    """The time of each batch after the first, which also draws the order of the epoch."""
    next(batches)
    spent = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        next(batches)
        spent.append(1e3 * (time.perf_counter() - start))
    return spent


def main() -> None:
    """Print the table; fail if the claim does not hold."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images.npy"
        np.save(path, np.random.default_rng(0).integers(0, 256, (COUNT, 3, 32, 32), np.uint8))
        split = Split(np.load(path, mmap_mode="r"), np.arange(COUNT) % 10)
        rows = {
            "one image at a time": milliseconds(looped(split)),
            "whole batches, augmented": milliseconds(iter(Batches(split, BATCH, seed=0, augment=Augmentation()))),
            "whole batches, plain": milliseconds(iter(Batches(split, BATCH, seed=0))),
        }
        del split
    print(f"{'ms per batch of 128':26} {'median':>8} {'max':>8}")
    for name, spent in rows.items():
        print(f"{name:26} {statistics.median(spent):8.2f} {max(spent):8.2f}")
    slow, fast = (statistics.median(rows[name]) for name in ("one image at a time", "whole batches, augmented"))
    print(f"{slow / fast:.1f} times as fast as the loop; {100 * fast / 1500:.2f}% of a step of 1.5 s")
    if fast > CLAIM_MS:
        raise SystemExit(f"the claim fails: {fast:.2f} ms, more than {CLAIM_MS} ms")


if __name__ == "__main__":
    main()
