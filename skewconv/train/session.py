"""Training: a config and images in, a trained and evaluated network out. Everything that trains goes through here."""

import dataclasses
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from skewconv.choices import FOLDER
from skewconv.config import TrainConfig, flag
from skewconv.errors import ArgumentError
from skewconv.extras import optional
from skewconv.progress import Display, display_for
from skewconv.train.checkpoint import Checkpoint, DataFacts, check_image_shape, check_norm_bound
from skewconv.train.data import Dataset, dataset_from_arrays, load_data
from skewconv.train.data.dataset import Splits, make_splits
from skewconv.train.environment import FILE, Hardware, write_config
from skewconv.train.loop import Outcome, Trainer
from skewconv.train.step import Metrics, evaluate

_LOCK = ".lock"
# The optimizer steps of a run whose number of epochs is chosen here; three hundred drawn shapes need about 800.
_STEPS, _LEAST_EPOCHS = 1200, 10


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
        display: Callable[[], Display] = Display,
        **options: Any,
    ) -> Outcome:
        """Train the run in a folder from its start, or from its checkpoint."""
        first = self.fabric.is_global_zero
        with lock(folder, self.fabric):
            checkpoint = checkpoint_of(folder, self.config)
            if first:
                write_config(folder, self.config)
            with closing(display() if first else Display()) as shown:
                options |= {"checkpoint": checkpoint, "display": shown}
                outcome = Trainer(self.config, self.fabric, folder, self.splits, **options).fit()
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
        config = replace(config, loading=replace(config.loading, batch_size=size))
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


def checkpoint_of(folder: Path, config: TrainConfig) -> Checkpoint | None:
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
    raise ArgumentError(
        f"{folder} was started otherwise ({'; '.join(differences(stored, config))}): ask for the same again, or begin "
        "another run with another --out"
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
