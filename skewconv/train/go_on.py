"""Runs that go on where they stopped: whether a folder holds what is asked for, who has it in hand, and the rest."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from skewconv.config import TrainConfig
from skewconv.errors import ArgumentError
from skewconv.extras import optional
from skewconv.fields import flag
from skewconv.train.build import Parts
from skewconv.train.checkpoint import Checkpoint
from skewconv.train.loop import Trainer
from skewconv.train.outcome import DivergedError, Outcome
from skewconv.train.places import FILE
from skewconv.train.progress import Display, Silent

_LOCK = ".lock"


def checkpoint_of(folder: Path, config: TrainConfig, *, may_be_longer: bool = False) -> Checkpoint | None:
    """The checkpoint in a folder; None if there is none. Figures of another recipe are never passed off.

    Args:
        folder: of the run.
        config: what is asked for; what was begun there must be the same.
        may_be_longer: more epochs or minutes than were begun with are allowed, and extend the run.
    """
    if not (folder / FILE).exists():
        return None
    checkpoint = Checkpoint(folder / FILE)
    stored = checkpoint.header.config
    if stored == config:
        return checkpoint
    if may_be_longer and _is_longer(stored, config):
        return checkpoint.extended(config)
    longer = " (only a larger --epochs or --minutes extends a run)" if may_be_longer else ""
    raise ArgumentError(
        f"{folder} was started otherwise ({'; '.join(differences(stored, config))}): ask for the same again{longer}, "
        "or begin another run with another --out"
    )


def differences(stored: Any, given: Any) -> list[str]:
    """What differs between two configs, flag by flag, in words."""
    found = []
    for each in dataclasses.fields(stored):
        before, now = getattr(stored, each.name), getattr(given, each.name)
        if dataclasses.is_dataclass(before):
            found += differences(before, now)
        elif before != now:
            found.append(f"{flag(each.name)} was {before} and is now {now}")
    return found


def train_the_rest(
    folder: Path,
    config: TrainConfig,
    fabric: Any,
    images: Callable[[], Parts],
    *,
    checkpoint: Checkpoint | None,
    display: Callable[[], Display] = Silent,
    **options: Any,
) -> Outcome | None:
    """Train from the start or from a checkpoint; None for a run whose weights diverged: that is a result too.

    Args:
        folder: of the run; it exists.
        config: of the run.
        fabric: Lightning Fabric, launched.
        images: gives the images; it is not asked where the run is finished already.
        checkpoint: where to go on from.
        display: makes what shows the progress, for the first process.
        options: further arguments of :class:`skewconv.train.loop.Trainer`.
    """
    if checkpoint is not None and checkpoint.header.position.finished:
        return Outcome(checkpoint.header.position, record=checkpoint.header.record)
    with closing(display() if fabric.is_global_zero else Silent()) as shown:
        trainer = Trainer(config, fabric, folder, images(), checkpoint=checkpoint, display=shown, **options)
        try:
            return trainer.fit()
        except DivergedError:
            return None


class Hold:
    """A folder taken by this process, and by it alone, until it is let go or the process dies."""

    def __init__(self, folder: Path, fabric: Any) -> None:
        filelock = optional("filelock", "filelock")
        self._busy = filelock.Timeout
        folder.mkdir(parents=True, exist_ok=True)
        self._lock, self._fabric, self.ours = filelock.FileLock(folder / _LOCK), fabric, True

    def __enter__(self) -> "Hold":
        if self._fabric.is_global_zero:
            try:
                self._lock.acquire(blocking=False)
            except self._busy:
                self.ours = False
        self.ours = self._fabric.broadcast(self.ours)
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.release()


@contextmanager
def sole_writer(folder: Path, fabric: Any) -> Iterator[None]:
    """Hold the folder of a run, or refuse: two processes that write one run would spoil it."""
    with Hold(folder, fabric) as hold:
        if not hold.ours:
            raise ArgumentError(
                f"another process has the run in {folder} in hand: wait for its end, or choose another --out"
            )
        yield


def _is_longer(stored: TrainConfig, given: TrainConfig) -> bool:
    """Whether a config differs in nothing but a larger number of epochs or minutes."""
    if replace(given, epochs=stored.epochs, minutes=stored.minutes) != stored:
        return False
    epochs, minutes = (stored.epochs, given.epochs), (stored.minutes, given.minutes)
    return any(old is not None and new is not None and new > old for old, new in (epochs, minutes))
