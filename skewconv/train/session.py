"""Training: a config and images in, a trained and evaluated network out. Everything that trains goes through here.

Runs of several seeds are runs like any other in NAME/seed-0, NAME/seed-1, ...; NAME/seeds.json is their record.
"""

import dataclasses
import math
import os
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TypeVar

from torch import nn

from skewconv.choices import FOLDER
from skewconv.config import TrainConfig, flag, from_dict, to_dict
from skewconv.errors import ArgumentError
from skewconv.extras import optional
from skewconv.progress import Display, display_for
from skewconv.records import make_record, read_record, write_record
from skewconv.train.checkpoint import Checkpoint, DataFacts, check_image_shape, check_norm_bound
from skewconv.train.data import Dataset, dataset_from_arrays, load_data
from skewconv.train.data.dataset import Splits, make_splits
from skewconv.train.environment import FILE, RECORD, SEEDS, Hardware, describe_run
from skewconv.train.loop import DivergedError, Outcome, StopSignals, Trainer
from skewconv.train.step import Metrics, evaluate

_LOCK = ".lock"
# The optimizer steps of a run whose number of epochs is chosen here; three hundred drawn shapes need about 800.
_STEPS, _LEAST_EPOCHS = 1200, 10

Key = TypeVar("Key")


@dataclass(frozen=True)
class Fitted:
    """The result of :func:`fit`: the trained network in eval mode, on the CPU, and its run.

    ``record["results"]`` has ``clean`` and ``certified``; ``path`` is the folder of the run, None if nothing was kept.
    """

    model: nn.Module
    config: TrainConfig
    record: dict[str, Any]
    splits: Splits
    path: Path | None

    @property
    def input_shape(self) -> tuple[int, int, int]:
        return self.splits.data.image_shape

    def evaluate(self, images: int | None = None) -> Metrics:
        """Clean and certified accuracy on the evaluation images, or on this number of them, with proofs."""
        return evaluate(self.model, self.splits.eval, self.config, images=images)


def fit(
    config: TrainConfig,
    data: Dataset | tuple[Any, Any] | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    quiet: bool = True,
    hardware: Hardware | None = None,
    checkpoint_seconds: float = 60.0,
) -> Fitted:
    """Train and evaluate a network, as ``skewconv train`` does.

    >>> from skewconv.train import fit, recipe
    >>> run = fit(recipe("digits", epochs=1, width=2, eval_batch_size=120))
    >>> run.record["results"]["status"], run.evaluate(images=10).images
    ('finished', 10)

    Args:
        config: such as ``recipe("cifar10", minutes=20)``, ``preset("lipconvnet-5/soc/cifar10")`` or a ``TrainConfig``.
        data: images in memory in place of those that the config names: (train, test), each (images, labels) or a
            dataset of PyTorch with items (image, label), see :func:`skewconv.train.data.dataset_from_arrays`; or a
            ``Dataset``.
        out: folder for checkpoints, logs and the record, which every command takes (default: nothing is kept).
        resume: resume the run in ``out``, if there is one.
        quiet: show no progress.
        hardware: devices and processes (default: a GPU if there is one).
        checkpoint_seconds: seconds between checkpoints (0: after every step).

    Raises:
        KeyboardInterrupt: after Ctrl-C or SIGTERM. The run in ``out`` is saved, and ``resume=True`` resumes it.
    """
    if resume and out is None:
        raise ArgumentError("resume=True needs out: which run shall go on?")
    if out is not None and (Path(out) / FILE).exists() and not resume:
        raise ArgumentError(f"{out} already holds a run: go on with resume=True, or choose another folder")
    session = prepare(config, hardware or Hardware(), data)
    with tempfile.TemporaryDirectory() if out is None else nullcontext(out) as folder:
        display = partial(display_for, quiet)
        outcome = session.train(Path(folder), display=display, checkpoint_seconds=checkpoint_seconds)
    if outcome.stopped_by is not None:
        raise KeyboardInterrupt(f"training was stopped by {outcome.stopped_by.name} after step {outcome.position.step}")
    assert outcome.record is not None
    path = None if out is None else Path(out)
    return Fitted(outcome.model.cpu().eval(), session.config, outcome.record, session.splits, path)


@dataclass(frozen=True)
class Session:
    config: TrainConfig
    splits: Splits
    fabric: Any

    def train(
        self,
        folder: Path,
        *,
        seed: int | None = None,
        extendable: bool = True,
        words: Sequence[str] | None = None,
        display: Callable[[], Display] = Display,
        **options: Any,
    ) -> Outcome:
        """Train the run in a folder from its start or checkpoint; more epochs or minutes extend it, or are refused."""
        config = self.config if seed is None else replace(self.config, seed=seed)
        first = self.fabric.is_global_zero
        with lock(folder, self.fabric):
            checkpoint = checkpoint_of(folder, config, extendable=extendable)
            if first:
                describe_run(folder, config, words)
            with closing(display() if first else Display()) as shown:
                trainer = Trainer(
                    config, self.fabric, folder, self.splits, checkpoint=checkpoint, display=shown, **options
                )
                outcome = trainer.fit()
            self.fabric.barrier()
        return outcome


def prepare(config: TrainConfig, hardware: Hardware, data: Dataset | tuple[Any, Any] | None = None) -> Session:
    config = with_absolute_data(config)
    if data is not None:
        data = data if isinstance(data, Dataset) else dataset_from_arrays(*data)
        config = config if data.name == config.data else replace(config, data=data.name)
        config, _ = fit_to_data(config, data, hardware.processes)
    fabric = hardware.fabric(config)
    if data is None:
        # One process prepares the cache, and the others find it there.
        with fabric.rank_zero_first():
            data = load_data(config)
    config, splits = fit_to_data(config, data, hardware.processes)
    return Session(config, splits, fabric)


def fit_to_data(config: TrainConfig, data: Dataset, processes: int = 1) -> tuple[TrainConfig, Splits]:
    """The config with batches and epochs chosen by the number of images where it has 0, and its images; or refused."""
    images, size = len(data.train) - config.loading.holdout, config.loading.batch_size
    if size == 0:
        size = min(128, max(8, 1 << max(0, (images // 8).bit_length() - 1)))
        size = max(processes, size - size % processes)
    if 0 < (most := images - images % processes) < size:
        size = most
    if size != config.loading.batch_size:
        optim = replace(config.optim, accumulate=min(config.optim.accumulate, size // processes))
        config = replace(config, optim=optim, loading=replace(config.loading, batch_size=size))
    steps = max(1, images // size)
    if config.epochs == 0:
        config = replace(config, epochs=max(_LEAST_EPOCHS, math.ceil(_STEPS / steps)))
    if config.eval_every == 0:
        config = replace(config, eval_every=math.ceil(_STEPS / 10 / steps))
    splits = make_splits(config, data)
    check_norm_bound(config.model)
    check_image_shape(config.model.arch, DataFacts.of(data))
    return config, splits


def with_absolute_data(config: TrainConfig) -> TrainConfig:
    """The config with an absolute path of its folder, which names the images from every other folder too."""
    if not config.data.startswith(FOLDER):
        return config
    place = os.path.abspath(os.path.expanduser(config.data.removeprefix(FOLDER)))
    return replace(config, data=f"{FOLDER}{place}")


def train_each(
    runs: Iterable[tuple[Key, str, Callable[[], Outcome]]], note: Callable[[str], None]
) -> Iterator[tuple[Key, Outcome | None, signal.Signals | None]]:
    """(key, outcome, signal) of one run after the other until the caller stops; no outcome for one that diverged."""
    with StopSignals() as signals:
        for key, name, train in runs:
            note(name)
            outcome: Outcome | None = None
            try:
                outcome = train()
            except BusyError:
                note(f"{name}: another process has it in hand; left to it")
                continue
            except DivergedError:
                pass
            yield key, outcome, (outcome and outcome.stopped_by) or signals.received


def checkpoint_of(folder: Path, config: TrainConfig, *, extendable: bool = False) -> Checkpoint | None:
    """The checkpoint in a folder; None if there is none. Raises if the folder was started with another config."""
    if not (folder / FILE).exists():
        return None
    checkpoint = Checkpoint(folder / FILE)
    stored = with_absolute_data(checkpoint.header.config)
    if stored.data.startswith(FOLDER) and config.data.startswith(FOLDER):
        # A folder may move; the trainer checks that its images are the same.
        stored = replace(stored, data=config.data)
    if stored == config:
        checkpoint.header = replace(checkpoint.header, config=config)
        return checkpoint
    pairs = (stored.epochs, config.epochs), (stored.minutes, config.minutes)
    longer = any(old is not None and new is not None and new > old for old, new in pairs)
    if extendable and longer and replace(config, epochs=stored.epochs, minutes=stored.minutes) == stored:
        return checkpoint.extended(config)
    remedy = "ask for the same again" + (" (only a larger --epochs or --minutes extends a run)" if extendable else "")
    raise ArgumentError(
        f"{folder} was started otherwise ({'; '.join(differences(stored, config))}): {remedy}, or begin another run "
        "with another --out"
    )


def differences(stored: Any, given: Any) -> list[str]:
    found = []
    for each in dataclasses.fields(stored):
        before, now = getattr(stored, each.name), getattr(given, each.name)
        if dataclasses.is_dataclass(before):
            found += differences(before, now)
        elif before != now:
            found.append(f"{flag(each.name)} was {before} and is now {now}")
    return found


class BusyError(ArgumentError):
    """Another process writes to the folder of a run."""


@contextmanager
def lock(folder: Path, fabric: Any) -> Iterator[None]:
    """Lock the folder of a run, created if need be: two processes that write one run would spoil it."""
    filelock = optional("filelock", "filelock")
    folder.mkdir(parents=True, exist_ok=True)
    held, ours = filelock.FileLock(folder / _LOCK), True
    if fabric.is_global_zero:
        try:
            held.acquire(blocking=False)
        except filelock.Timeout:
            ours = False
    try:
        if not fabric.broadcast(ours):
            raise BusyError(
                f"another process has the run in {folder} in hand: wait for its end, or choose another --out"
            )
        yield
    finally:
        held.release()


@dataclass
class MeanStd:
    """The mean and the sample standard deviation (None for a single value) of one value for each seed: 45.50 ± 0.71."""

    values: tuple[float, ...]
    digits: int = 2

    def __post_init__(self) -> None:
        self.mean = fmean(self.values)
        self.std = stdev(self.values) if len(self.values) > 1 else None

    def __str__(self) -> str:
        std = "" if self.std is None else f" ± {self.std:.{self.digits}f}"
        return f"{self.mean:.{self.digits}f}{std}"


def summary(count: int, ended: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    finished = [results for results in ended.values() if results["status"] == "finished"]
    diverged = [seed for seed, results in ended.items() if results["status"] == "diverged"]
    status = "diverged" if diverged else "finished" if len(finished) == count else "unfinished"
    found: dict[str, Any] = {"status": status, "seeds": count, "ended": sorted(ended), "diverged": diverged}
    if finished and not diverged:
        found |= {name: finished[0][name] for name in ("split", "images")} | {"deviation": {}}
        for name, values in values_of(finished).items():
            metric, (outer, _, inner) = MeanStd(tuple(values)), name.partition("/")
            for table, value in ((found, metric.mean), (found["deviation"], metric.std)):
                (table.setdefault(outer, {}) if inner else table)[inner or outer] = value
    return {**found, "runs": {str(seed): dict(results) for seed, results in ended.items()}}


def values_of(runs: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """name -> the value of each run; certified accuracy is called certified/RADIUS."""
    found: dict[str, list[float]] = {}
    for results in runs:
        flat = {name: results[name] for name in ("clean", "attacked", "mean_radius") if name in results}
        flat |= {f"certified/{radius}": share for radius, share in results.get("certified", {}).items()}
        for name, value in flat.items():
            found.setdefault(name, []).append(value)
    return found


@dataclass(frozen=True)
class SeedRuns:
    """Runs that differ in their seeds only: `count` seeds from that of the config on, in folders in `folder`."""

    config: TrainConfig
    count: int
    folder: Path

    @property
    def seeds(self) -> range:
        return range(self.config.seed, self.config.seed + self.count)

    def run_folder(self, seed: int) -> Path:
        return self.folder / f"seed-{seed}"

    def ended(self) -> dict[int, dict[str, Any]]:
        found: dict[int, dict[str, Any]] = {}
        for seed in self.seeds:
            path = self.run_folder(seed) / RECORD
            if path.exists():
                record = read_record(path)
                same = from_dict(TrainConfig, record["config"]) == replace(self.config, seed=seed)
                if record["results"]["status"] == "finished" and same:
                    found[seed] = record["results"]
        return found

    def train(
        self, session: Session, *, note: Callable[[str], None] = lambda text: None, **options: Any
    ) -> tuple[dict[str, Any], int | None]:
        """Train what is left, one seed after the other: the record, and the signal that stopped it, or None."""
        ended, first, stopped = self.ended(), session.fabric.is_global_zero, None
        for seed in self.seeds:
            # Refused before anything is written, if another recipe was begun here.
            checkpoint_of(self.run_folder(seed), replace(self.config, seed=seed), extendable=True)
        self.write(ended, first)
        runs = (
            (seed, f"seed {seed}", partial(session.train, self.run_folder(seed), seed=seed, **options))
            for seed in self.seeds
            if seed not in ended
        )
        for seed, outcome, stopped in train_each(runs, note):
            if outcome is None:
                ended[seed] = {"status": "diverged"}
            elif outcome.record is not None:
                ended[seed] = outcome.record["results"]
            self.write(ended, first)
            if stopped is not None:
                break
        return self.write(ended, first), stopped

    def write(self, ended: Mapping[int, dict[str, Any]], first: bool = True) -> dict[str, Any]:
        """The record of all seeds, with those that another process ended meanwhile; written by the first process."""
        results = summary(self.count, {**self.ended(), **ended})
        record = make_record("train-seeds", config=to_dict(self.config), seed=self.config.seed, results=results)
        if first:
            write_record(self.folder / SEEDS, record)
        return record


def stored_seeds(folder: Path) -> SeedRuns:
    record = read_record(folder / SEEDS)
    if record["kind"] != "train-seeds":
        raise ArgumentError(f"{folder / SEEDS} is no record of several seeds: it is of the kind {record['kind']!r}")
    return SeedRuns(from_dict(TrainConfig, record["config"]), int(record["results"]["seeds"]), folder)
