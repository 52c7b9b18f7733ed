"""A few steps of our own CIFAR-10 recipe, on the real images. Only a registry out of reach may skip it, loudly."""

import csv
from dataclasses import replace
from pathlib import Path

from skewconv.models import LipConvnet
from skewconv.train.data import Dataset, Split
from skewconv.train.presets import recipe
from skewconv.train.run import load
from tests.train.runs import train


def few(split: Split, count: int) -> Split:
    return Split(split.images[:count], split.labels[:count])


def test_a_few_steps_of_lipconvnet_5_train_on_cifar_10(cifar10: Dataset, tmp_path: Path) -> None:
    data = replace(cifar10, train=few(cifar10.train, 1280), test=few(cifar10.test, 200))
    config = recipe("cifar10")
    config = replace(
        config, epochs=1, model=replace(config.model, width=4), loading=replace(config.loading, batch_size=64)
    )
    outcome = train(config, tmp_path, data)
    assert outcome.position.step == 20
    assert outcome.metrics is not None
    assert outcome.metrics.certified is not None
    model = load(tmp_path)
    assert isinstance(model, LipConvnet)
    assert (model.depth, model.input_size, model.in_channels) == (5, 32, 3)
    with open(tmp_path / "log.csv", newline="") as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file)]
    assert losses[-1] < losses[0]
    assert outcome.metrics.clean > 0.12
