"""Batches, epochs and evaluations that fit the number of images, where a config leaves them open."""

import math
from dataclasses import replace

import numpy as np
import pytest

from skewconv.train import recipe
from skewconv.train.build import fit_to_data
from skewconv.train.data import Dataset, Split


def of_size(data: Dataset, count: int) -> Dataset:
    """A dataset with this number of training images."""
    index = np.arange(count) % len(data.train)
    return replace(data, train=Split(data.train.images[index], data.train.labels[index]))


@pytest.mark.parametrize(
    ("images", "processes", "batch_size", "epochs"),
    [
        (20, 1, 8, 600),
        (323, 1, 32, 120),
        (323, 3, 30, 120),
        (1000, 1, 64, 80),
        (5000, 2, 128, 31),
        (50_000, 1, 128, 10),
    ],
)
def test_small_folders_are_trained_for_a_number_of_optimizer_steps(
    images: int, processes: int, batch_size: int, epochs: int, data: Dataset
) -> None:
    config, _ = fit_to_data(recipe("folder:x"), of_size(data, images), processes)
    assert (config.loading.batch_size, config.epochs) == (batch_size, epochs)
    steps = images // batch_size
    assert config.epochs == 10 or 1200 <= config.epochs * steps < 1200 + steps
    assert config.eval_every == math.ceil(120 / steps)


def test_what_is_asked_for_is_obeyed(data: Dataset) -> None:
    asked = recipe("folder:x", epochs=3, batch_size=128, eval_every=2)
    assert fit_to_data(asked, of_size(data, 300))[0] == asked
    minutes, _ = fit_to_data(recipe("folder:x", minutes=5), of_size(data, 300))
    assert (minutes.epochs, minutes.minutes, minutes.loading.batch_size, minutes.eval_every) == (None, 5, 32, 14)
