"""One run of a table: a row with a seed, what to train for it, and where it and its record lie."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skewconv.config import TrainConfig, from_dict
from skewconv.errors import ArgumentError
from skewconv.records import read_record
from skewconv.reproduce.rows import Row
from skewconv.train.checkpoint import Checkpoint
from skewconv.train.session import checkpoint_of, differences

RECORDS = "records"
# What a record says of minutes that were counted by the processor.
PROCESSOR = "processor"


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
        return checkpoint_of(self.folder, self.config)

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
        """A record must be of what is asked for."""
        if stored != self.config:
            changes = "; ".join(differences(stored, self.config))
            raise ArgumentError(
                f"{self.record_path} is of a run that was started otherwise ({changes}): ask for the same again, or "
                "choose another --out"
            )
