"""One run of a table: a row with a seed, what to train for it, and where it and its record lie."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skewconv.config import TrainConfig, from_dict, to_dict
from skewconv.errors import ArgumentError
from skewconv.records import read_record
from skewconv.reproduce.rows import Row
from skewconv.train.checkpoint import Checkpoint
from skewconv.train.places import FILE

RECORDS = "records"


@dataclass(frozen=True)
class Job:
    """One row with one seed: what to train, and where."""

    row: Row
    seed: int
    config: TrainConfig
    out: Path

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self.out / self.row.name / f"seed-{self.seed}"

    @property
    def record_path(self) -> Path:
        """The file of its record."""
        return self.out / RECORDS / f"{self.row.name.replace('/', '-')}-{self.seed}.json"

    def checkpoint(self) -> Checkpoint | None:
        """Where the run is; None if it has not begun."""
        if not (self.folder / FILE).exists():
            return None
        checkpoint = Checkpoint(self.folder / FILE)
        self._check(checkpoint.header.config)
        return checkpoint

    def record(self) -> dict[str, Any] | None:
        """The record, if the run is finished."""
        if not self.record_path.exists():
            return None
        record = read_record(self.record_path)
        self._check(from_dict(TrainConfig, record["config"]))
        return record

    def done(self) -> float:
        """The share of the run that is done, from 0 to 1."""
        if self.record() is not None:
            return 1.0
        checkpoint = self.checkpoint()
        return 0.0 if checkpoint is None else checkpoint.header.position.done

    def _check(self, stored: TrainConfig) -> None:
        """What lies in the folder must be what is asked for: figures of another recipe are never passed off."""
        if stored != self.config:
            before, now = _flat(to_dict(stored)), _flat(to_dict(self.config))
            changes = [f"{key} was {before[key]!r} and is now {now[key]!r}" for key in now if now[key] != before[key]]
            raise ArgumentError(
                f"{self.folder} was run otherwise ({'; '.join(changes)}): ask for the same again, or choose another "
                "--out"
            )


def _flat(plain: dict[str, Any]) -> dict[str, Any]:
    """Nested mappings as one, by the innermost names, which are distinct."""
    found: dict[str, Any] = {}
    for name, value in plain.items():
        found |= _flat(value) if isinstance(value, dict) else {name: value}
    return found
