"""skewconv evaluate: the figures of a run once more, from its checkpoint."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from skewconv.commands import print_json
from skewconv.commands.figures import print_figures
from skewconv.config import to_dict
from skewconv.errors import ArgumentError
from skewconv.records import make_record
from skewconv.train.build import parts
from skewconv.train.evaluate import evaluate
from skewconv.train.hardware import Hardware
from skewconv.train.run import open_run


@dataclass(frozen=True)
class Evaluate:
    """Judge a trained network again: the same figures as at the end of training, from its checkpoint alone.

    On one machine they are the same to the last digit. Another processor or number of threads rounds otherwise, and
    may move an accuracy by an image that lies within rounding of the line.
    """

    run_path: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(name="run", metavar="RUN")]
    """The folder of a run, or a checkpoint file."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "cpu"
    """Where to compute; auto is a GPU if there is one."""
    split: Literal["test", "validation"] | None = None
    """Test images, or the training images that the run held out; by default those it was judged by in training."""
    images: int | None = None
    """How many of them; all by default."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print a record as JSON."""

    def run(self) -> int:
        """Open, judge, print."""
        device = Hardware(device=self.device).kind()
        run = open_run(self.run_path)
        data = run.dataset()
        chosen = parts(run.config, data)
        name, split = (chosen.name, chosen.judged) if self.split != "test" else ("test", data.test)
        if self.split not in (None, name):
            raise ArgumentError(f"split is {self.split!r}, but {run.path} held no images out: train with --holdout")
        figures = evaluate(run.model.to(device), split, run.config, images=self.images, device=device)
        results = {"split": name, **figures.plain()}
        if self.json:
            config = to_dict(run.config)
            print_json(make_record("evaluate", config=config, seed=run.config.seed, results=results))
        else:
            print_figures(f"{run.config.preset or run.config.data}: {run.path}", results)
        return 0
