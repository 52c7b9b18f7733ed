"""The seconds of a training step of each row, side by side: the speed of the methods, apart from their training."""

import itertools
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from skewconv.bench.measure import side_by_side
from skewconv.config import TrainConfig, to_dict
from skewconv.records import make_record
from skewconv.train.build import DataFacts, build_model, epoch_batches, load_data, make_splits
from skewconv.train.step import Stepper

# Processors that other programs may use before a wall time is no longer worth printing.
_QUIET = 0.25


def measure(experiment: str, configs: Mapping[str, TrainConfig], fabric: Any, *, rounds: int = 5) -> dict[str, Any]:
    """A record with the seconds of an epoch of every row, by the clock and by the processor: the fastest step counts.

    Wall seconds are taken with torch's threads as they are set, processor seconds with one thread, since idle threads
    that spin would count too. `quiet` is true if the machine was idle in the minute before.
    """
    steps, steps_an_epoch = {}, {}
    for name, config in configs.items():
        steps[name], steps_an_epoch[name] = _training(config, fabric)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    wall = side_by_side(steps, rounds=rounds, warmup=1)
    processor = side_by_side(steps, rounds=rounds, warmup=1, threads=1, clock=time.process_time)
    rows = {
        name: {
            "model": to_dict(config.model),
            "batch_size": config.loading.batch_size,
            "steps_an_epoch": steps_an_epoch[name],
            "seconds_a_step": min(wall[name]),
            "seconds_an_epoch": min(wall[name]) * steps_an_epoch[name],
            "cpu_seconds_an_epoch": min(processor[name]) * steps_an_epoch[name],
        }
        for name, config in configs.items()
    }
    results = {"experiment": experiment, "quiet": load < _QUIET, "load": load, "rounds": rounds, "rows": rows}
    settings = {"rounds": rounds, "threads": torch.get_num_threads()}
    return make_record("reproduce-time", config=settings, seed=0, results=results)


def _training(config: TrainConfig, fabric: Any) -> tuple[Callable[[], object], int]:
    """A function that makes the next training step of a run, augmentation and all; and the steps of an epoch."""
    data = load_data(config)
    torch.manual_seed(config.seed)
    stepper = Stepper(config, fabric, build_model(config, DataFacts.of(data)))
    images = make_splits(config, data)
    epochs = (epoch_batches(config, images, fabric, epoch=epoch) for epoch in itertools.count())
    batches = itertools.chain.from_iterable(epochs)

    def step() -> object:
        # A value is asked for, so that an accelerator has done what it was told.
        return stepper.step(*next(batches), done=0.0, epoch=0, step=0).tolist()

    return step, epoch_batches(config, images, fabric, epoch=0).steps
