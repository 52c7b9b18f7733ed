"""The runs of a table, one after the other: each resumed where it stopped, and one record for each that is done.

The folder of a study holds the table, records/lipconvnet-5-soc-0.json for each row and seed, and the runs, such as
lipconvnet-5/soc/seed-0. The speed of the rows is measured apart from their training.
"""

import itertools
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn

from skewconv.bench import side_by_side
from skewconv.certify.audit import facts
from skewconv.choices import Scale
from skewconv.config import TrainConfig, from_dict, to_dict
from skewconv.errors import ArgumentError
from skewconv.nn import SOC2d, lower
from skewconv.nn.module_tools import evaluating
from skewconv.nn.primitives import SkewExponential
from skewconv.ops import truncation_error
from skewconv.progress import Display
from skewconv.records import make_record, read_record, write_record
from skewconv.reproduce.rows import Changes, Row, config_of
from skewconv.train.checkpoint import DataFacts, build_model
from skewconv.train.data import load_data
from skewconv.train.data.dataset import Splits, epoch_batches, make_splits
from skewconv.train.environment import CSV_FILE, read_log
from skewconv.train.loop import DivergedError, StopSignals
from skewconv.train.run import open_run
from skewconv.train.session import BusyError, Session, checkpoint_of, differences
from skewconv.train.step import Stepper, evaluate

RECORDS, TIMES = "records", "time.json"
#: minutes_of in a record whose minutes were counted by the processor
PROCESSOR = "processor"
# 12 terms, identity included: the paper's evaluation.
_PAPER_EVAL_DEGREE = 11
# Processors that other programs may use before a wall time is no longer worth printing.
_QUIET = 0.25


@dataclass(frozen=True)
class Job:
    """One row with one seed."""

    row: Row
    seed: int
    config: TrainConfig
    out: Path

    def __str__(self) -> str:
        return f"{self.row.name}, seed {self.seed}"

    @property
    def folder(self) -> Path:
        return self.out / self.row.name / f"seed-{self.seed}"

    @property
    def record_path(self) -> Path:
        return self.out / RECORDS / f"{self.row.name.replace('/', '-')}-{self.seed}.json"

    def record(self) -> dict[str, Any] | None:
        """The record, if the run is finished; refused if it is of another config."""
        if not self.record_path.exists():
            return None
        record = read_record(self.record_path)
        if (stored := from_dict(TrainConfig, record["config"])) != self.config:
            changes = "; ".join(differences(stored, self.config))
            raise ArgumentError(
                f"{self.record_path} is of a run that was started otherwise ({changes}): ask for the same again, or "
                "choose another --out"
            )
        return record

    def done(self) -> float:
        """The share of the run that is done, from 0 to 1."""
        if self.record() is not None:
            return 1.0
        checkpoint = checkpoint_of(self.folder, self.config)
        return 0.0 if checkpoint is None else checkpoint.header.position.done

    def splits(self) -> Splits:
        return make_splits(self.config, load_data(self.config))


@dataclass(frozen=True)
class Study:
    """Rows of an experiment at a scale, in a folder; every record shows `command` as the way to repeat it."""

    experiment: str
    scale: Scale
    rows: tuple[Row, ...]
    out: Path
    seeds: tuple[int, ...] = ()
    changes: Changes = field(default_factory=Changes)
    command: str = ""
    processor_time: bool = False

    def jobs(self) -> list[Job]:
        """Every row with each of its seeds (default: 0, and at the cpu scale those of the row)."""
        return [
            Job(row, seed, config_of(row, self.scale, seed, self.changes), self.out)
            for row in self.rows
            for seed in dict.fromkeys(self.seeds) or (row.cpu_seeds if self.scale == "cpu" else (0,))
        ]

    def records(self) -> list[dict[str, Any]]:
        return [record for job in self.jobs() if (record := job.record()) is not None]

    def times(self) -> dict[str, Any] | None:
        """The record of --time, with those rows only that are still what was measured."""
        if not (self.out / TIMES).exists():
            return None
        times, configs = read_record(self.out / TIMES), {job.row.name: job.config for job in self.jobs()}
        rows = {
            name: row
            for name, row in times["results"]["rows"].items()
            if name in configs
            and (row["model"], row["batch_size"]) == (to_dict(configs[name].model), configs[name].loading.batch_size)
        }
        return {**times, "results": {**times["results"], "rows": rows}}

    def seconds_left(self, job: Job, times: dict[str, Any] | None) -> float | None:
        """Seconds that a run still takes, by its minutes or by `times`; None if neither is known."""
        left = 1.0 - job.done()
        if job.config.minutes is not None or not left:
            return 60 * (job.config.minutes or 0.0) * left
        if times is None or job.row.name not in times["results"]["rows"]:
            return None
        assert job.config.epochs is not None
        return float(times["results"]["rows"][job.row.name]["seconds_an_epoch"]) * job.config.epochs * left

    def run(
        self,
        fabric: Any,
        display: Callable[[], Display] = Display,
        note: Callable[[str], None] = lambda text: None,
        finished: Callable[[], object] = lambda: None,
        checkpoint_seconds: float = 60.0,
    ) -> int | None:
        """Run what is left, row by row; the signal that stopped it, or None if all was gone through.

        A run that another process has locked is left to it, so that several processes can share a study.
        """
        clock = time.process_time if self.processor_time else time.monotonic
        options: dict[str, Any] = {"display": display, "checkpoint_seconds": checkpoint_seconds, "clock": clock}
        with StopSignals() as signals:
            for job in self.jobs():
                # The first process decides for all: another study may finish this run just now.
                if fabric.broadcast(fabric.is_global_zero and job.record() is not None):
                    continue
                note(str(job))
                stopped = None
                try:
                    stopped = Session(job.config, job.splits(), fabric).train(job.folder, **options).stopped_by
                except BusyError:
                    note(f"{job}: another process has it in hand; left to it")
                    continue
                except DivergedError:
                    pass  # recorded as such
                if stopped is None:
                    if fabric.is_global_zero:
                        self._write(job)
                        finished()
                    fabric.barrier()
                if (stopped := stopped or signals.received) is not None:
                    return stopped
        return None

    def _write(self, job: Job) -> None:
        """The record of a run that ended: where and how it began, its metrics, and what it was run for."""
        run = open_run(job.folder)
        record, is_finished = run.checkpoint.header.record, run.position.finished
        results: dict[str, Any] = dict(record["results"]) if is_finished else {"status": "diverged"}
        # Wall time says how busy the machine was; `reproduce --time` measures speed.
        name = "cpu_seconds" if self.processor_time else "wall_seconds"
        spent = {name: results.pop("seconds")} if "seconds" in results else {}
        command = f"{self.command} --rows {job.row.name} --seeds {job.seed}"
        facts = {"experiment": self.experiment, "row": job.row.name, "scale": self.scale, "command": command}
        if self.processor_time:
            facts["minutes_of"] = PROCESSOR
        if is_finished and results["images"] < len(split := job.splits().eval):
            # A budget of minutes had time for some of the images only.
            results |= evaluate(run.model, split, job.config).plain()
        if is_finished and job.config.model.conv == "soc":
            results["jacobian"] = largest_jacobian(run.model, run.input_shape)
        results["curve"] = curve(job.folder)
        job.record_path.parent.mkdir(parents=True, exist_ok=True)
        write_record(job.record_path, {**record, "kind": "reproduce", "results": {**facts, **results, **spent}})


def curve(folder: Path) -> list[dict[str, float]]:
    """One point for each evaluation of a run: epoch, minutes, clean accuracy, certified accuracy if there is one."""
    points: list[dict[str, float]] = []
    for row in read_log(folder / CSV_FILE):
        shares = {name.rpartition("_")[2]: row[name] for name in row if name.endswith(("_clean", "_certified"))}
        if "clean" in shares:
            points.append({"epoch": row["epoch"], "minutes": row["seconds"] / 60, **shares})
    return points


def largest_jacobian(model: nn.Module, input_shape: tuple[int, ...]) -> dict[str, Any]:
    """The paper's "real normalisation" (Section 7): power iteration at the size of the image each layer really sees.

    That is an estimate from below; the symbol bound of the same filters stands beside it.
    """
    with evaluating(model):
        seen = [facts(each, ()) for each in lower(model, input_shape).modules() if isinstance(each, SkewExponential)]
    layers = [layer for layer in model.modules() if isinstance(layer, SOC2d)]
    largest = max(each["norm_upper_bounds"]["symbol"] for each in seen)
    return {
        "layers": len(seen),
        "products_in_training": fmean(layer.polynomial(training=True).degree for layer in layers),
        "products_in_evaluation": fmean(each["degree"] for each in seen),
        "norm_estimate": max(each["norm_estimate"] for each in seen),
        "norm_upper_bound": largest,
        "truncation_error": max(each["truncation_error"] for each in seen),
        "truncation_error_taylor_12_terms": truncation_error(largest, _PAPER_EVAL_DEGREE, "taylor"),
    }


def measure(experiment: str, configs: Mapping[str, TrainConfig], fabric: Any, *, rounds: int = 5) -> dict[str, Any]:
    """A record with the seconds of an epoch of every row, by the clock and by the processor: the fastest step counts.

    Wall seconds are taken with torch's threads as they are set, processor seconds with one thread, since idle threads
    that spin would count too. `quiet` is true if the machine was idle in the minute before.
    """
    # Before the networks are built, which is work too.
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    steps, steps_an_epoch = {}, {}
    for name, config in configs.items():
        steps[name], steps_an_epoch[name] = _training(config, fabric)
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
