"""Everything a run's folder holds that can be shown, and what is missing, with the command that makes it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from skewconv.certify import certify_dataset
from skewconv.errors import SkewconvError
from skewconv.records import RecordError
from skewconv.report.stored import COLUMNS, CertificateTable, stored_certificates, stored_record
from skewconv.report.training_log import TrainingLog, read_log
from skewconv.train.data import Dataset
from skewconv.train.paths import AUDIT
from skewconv.train.run import Run, eval_data, open_run

#: so many images are certified on the way where a run has no certificates yet
SAMPLE = 1000


@dataclass(frozen=True)
class RunFacts:
    """A run, opened and read.

    Arguments:
        name: short, and different for each run of a report.
        run: its config, network and dataset.
        record: record.json, with the figures of the training command; None if there is none.
        log: of its training.
        certificates: of its test images; None if there can be none.
        audit: the results of audit.json; None if there is none.
        attacks: the results of every attack on it.
        missing: sentences on what is not there, and how to get it.
    """

    name: str
    run: Run
    record: dict[str, Any] | None
    log: TrainingLog
    certificates: CertificateTable | None
    audit: dict[str, Any] | None
    attacks: tuple[dict[str, Any], ...]
    missing: tuple[str, ...]

    @cached_property
    def dataset(self) -> Dataset | SkewconvError:
        """The dataset of the run, or why it cannot be had."""
        try:
            return self.run.dataset()
        except SkewconvError as error:
            return error

    def class_name(self, label: int) -> str:
        """What a label is called."""
        names = self.run.data.classes
        return names[label] if 0 <= label < len(names) else str(label)


def collect(paths: Sequence[Path | str], note: Callable[[str], None] = lambda text: None) -> list[RunFacts]:
    """Open and read runs.

    Args:
        paths: folders of runs, or checkpoints.
        note: is told what takes a while.
    """
    runs = [open_run(path) for path in paths]
    return [_read(run, name, note) for run, name in zip(runs, run_names([run.name for run in runs]), strict=True)]


def run_names(paths: Sequence[str]) -> list[str]:
    """The last parts of the paths, as few as tell them apart.

    >>> run_names(["a/run", "b/run", "c/other"])
    ['a/run', 'b/run', 'other']
    """
    names, whole = [], [Path(path).absolute() for path in paths]
    for path in whole:
        parts = path.parts
        others = [other.parts for other in whole if other != path]
        length = 1
        while length < len(parts) and any(other[-length:] == parts[-length:] for other in others):
            length += 1
        names.append("/".join(parts[-length:]))
    return [f"{name} ({names[:at].count(name) + 1})" if name in names[:at] else name for at, name in enumerate(names)]


def _read(run: Run, name: str, note: Callable[[str], None]) -> RunFacts:
    missing: list[str] = []
    record = _record(run, run.record_path, missing, "the record of its training")
    certificates = _certificates(run, missing, note)
    audit = _record(run, run.path / AUDIT, missing, f"an audit of its layers: skewconv audit {run.name}")
    attacks = [_record(run, path, missing, path.name) for path in sorted(run.path.glob("attack*.json"))]
    if not attacks:
        missing.append(f"an attack: skewconv attack {run.name}")
    return RunFacts(
        name,
        run,
        record,
        read_log(run.path / "log.csv"),
        certificates,
        None if audit is None else audit["results"],
        tuple(attack["results"] for attack in attacks if attack is not None),
        tuple(missing),
    )


def _record(run: Run, path: Path, missing: list[str], what: str) -> dict[str, Any] | None:
    if not path.exists():
        missing.append(what)
        return None
    try:
        return stored_record(run, path)
    except RecordError as error:
        missing.append(str(error))
        return None


def _certificates(run: Run, missing: list[str], note: Callable[[str], None]) -> CertificateTable | None:
    """Those on disk if they belong to these weights; else some are made here."""
    found, reason = stored_certificates(run)
    if found is not None:
        return found
    if reason:
        missing.append(reason)
    try:
        judged = eval_data(run, split="test", images=SAMPLE)
        note(f"certifying {len(judged):,} test images of {run.name}")
        images, labels, index = judged.tensors()
        made = certify_dataset(run.model, images, labels, index=index)
    except SkewconvError as error:
        missing.append(f"certificates: {error}")
        return None
    if len(judged) < judged.of:
        some = f"{len(judged):,} of {judged.of:,} test images, evenly spread"
        missing.append(f"certificates of all test images, here are {some}: skewconv certify {run.name} --split test")
    else:
        some = "all test images"
    origin = f"made for this report on {some}"
    return CertificateTable(**{name: getattr(made, name).numpy() for name in COLUMNS}, origin=origin)
