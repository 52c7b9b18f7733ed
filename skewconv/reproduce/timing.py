"""The seconds of a training step of each row, side by side: the speed of the methods, apart from their training."""

import itertools
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from skewconv.config import TrainConfig, to_dict
from skewconv.records import make_record
from skewconv.train.build import DataFacts, build_model, epoch_batches, load_data, make_splits
from skewconv.train.step import Stepper

_WARM_UP = 1
# Processors that other programs may use before a wall time is no longer worth printing.
_QUIET = 0.25


def measure(experiment: str, configs: Mapping[str, TrainConfig], fabric: Any, *, rounds: int = 5) -> dict[str, Any]:
    """A record with the seconds of an epoch of every row, by the clock and by the processor.

    Every row makes one step in each round, so that what disturbs the machine disturbs all of them; the fastest step
    counts. Wall seconds are taken with torch's threads as they are set, processor seconds with one thread, since idle
    threads that spin would count too. `quiet` is true if the machine was idle in the minute before.
    """
    steps = {name: _Steps(config, fabric) for name, config in configs.items()}
    before = torch.get_num_threads()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    wall = _best(steps, time.perf_counter, rounds)
    torch.set_num_threads(1)
    try:
        processor = _best(steps, time.process_time, rounds)
    finally:
        torch.set_num_threads(before)
    rows = {
        name: {
            "model": to_dict(config.model),
            "batch_size": config.loading.batch_size,
            "steps_an_epoch": steps[name].in_an_epoch,
            "seconds_a_step": wall[name],
            "seconds_an_epoch": wall[name] * steps[name].in_an_epoch,
            "cpu_seconds_an_epoch": processor[name] * steps[name].in_an_epoch,
        }
        for name, config in configs.items()
    }
    results = {"experiment": experiment, "quiet": load < _QUIET, "load": load, "rounds": rounds, "rows": rows}
    return make_record("reproduce-time", config={"rounds": rounds, "threads": before}, seed=0, results=results)


class _Steps:
    """The training steps of a run, one a call: batches, augmentation and all."""

    def __init__(self, config: TrainConfig, fabric: Any) -> None:
        data = load_data(config)
        torch.manual_seed(config.seed)
        self._stepper = Stepper(config, fabric, build_model(config, DataFacts.of(data)))
        images = make_splits(config, data)
        epochs = (epoch_batches(config, images, fabric, epoch=epoch) for epoch in itertools.count())
        self._batches = itertools.chain.from_iterable(epochs)
        self.in_an_epoch = epoch_batches(config, images, fabric, epoch=0).steps

    def __call__(self) -> None:
        images, labels = next(self._batches)
        # A value is asked for, so that an accelerator has done what it was told.
        self._stepper.step(images, labels, done=0.0, epoch=0, step=0).tolist()


def _best(steps: Mapping[str, _Steps], clock: Callable[[], float], rounds: int) -> dict[str, float]:
    best = dict.fromkeys(steps, float("inf"))
    for turn in range(_WARM_UP + rounds):
        for name, step in steps.items():
            began = clock()
            step()
            if turn >= _WARM_UP:
                best[name] = min(best[name], clock() - began)
    return best
