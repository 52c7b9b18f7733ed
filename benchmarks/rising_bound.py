"""A norm bound that rises in training: few products for filters that may not turn far yet, more when they may.

For 40% of the run the bound is 1.5 with two products; until 60% it rises to 2.1, with three. To be compared with
`skewconv reproduce norms-5 --processor-time`, in the same minutes of one thread, on the same held-out images.

Run: OMP_NUM_THREADS=1 python benchmarks/rising_bound.py OUT --seeds 0 1 2
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from torch import Tensor

from skewconv.nn.soc.skew_conv import SkewConv
from skewconv.reproduce.ours import norms
from skewconv.reproduce.rows import Row
from skewconv.reproduce.study import Study
from skewconv.train.hardware import Hardware
from skewconv.train.step import Stepper

NAME = "1.5-to-2.1/degree-2-to-3"
LOW, HIGH = 1.5, 2.1
RISE = (0.4, 0.6)
# Each bound has its own polynomial.
NOTCHES = 20


def bound_at(done: float) -> float:
    """The norm bound when the share `done` of the run lies behind."""
    begin, end = RISE
    notch = round(NOTCHES * min(max((done - begin) / (end - begin), 0.0), 1.0))
    return LOW + (HIGH - LOW) * notch / NOTCHES


def row_of(minutes: int) -> Row:
    """The row beside those of `skewconv reproduce norms-5`: the config is that of the end."""
    config = norms("cifar10", minutes)["2.1/degree-3"]
    return Row(NAME, config, None, cpu_seeds=(0, 1, 2), own=config)


class RisingStepper(Stepper):
    """Steps whose filters are scaled by where the run is."""

    def step(self, images: Tensor, labels: Tensor, *, done: float, **where: Any) -> Tensor:
        """As ever, at the bound of the moment."""
        bound = bound_at(done)
        for layer in self.model.modules():
            if isinstance(layer, SkewConv) and layer.kernel_size != (1, 1) and layer.norm_bound != bound:
                layer.norm_bound = bound
                layer.train_accuracy = replace(layer.train_accuracy, degree=2 if bound == LOW else 3)
        return super().step(images, labels, done=done, **where)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--minutes", type=int, default=5)
    arguments = parser.parse_args()
    fabric = Hardware().fabric(row_of(arguments.minutes).recipe)
    command = "python benchmarks/rising_bound.py OUT"
    rows, seeds = (row_of(arguments.minutes),), tuple(arguments.seeds)
    study = Study("rising-bound", "cpu", rows, arguments.out, seeds, command=command, processor_time=True)
    with patch("skewconv.train.loop.Stepper", RisingStepper):
        study.run(fabric, note=print)
    for record in study.records():
        found = record["results"]
        print(f"seed {record['seed']}: clean {found['clean']:.4f}, certified {found['certified']}")
