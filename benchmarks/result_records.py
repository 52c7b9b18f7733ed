"""The records behind RESULTS.md: where they lie, and how those of a study get there."""

import shutil
from pathlib import Path
from typing import Any

from tables import ROOT

from skewconv.records import read_record, write_record

RECORDS = ROOT / "benchmarks" / "records" / "reproduce"
# Runs that chose the reduced recipe, of LipConvnets and of ResNets, and how a trained network is best trained on.
TRIALS, RESIDUAL_TRIALS, CONTINUED_TRIALS = "trials", "residual-trials", "continued-trials"


def records(study: str) -> list[dict[str, Any]]:
    """The records of a study, in the order of their names."""
    return [read_record(path) for path in sorted((RECORDS / study).glob("*.json")) if path.name != "time.json"]


def times(study: str) -> dict[str, Any] | None:
    """What `reproduce --time` measured, if it did."""
    path = RECORDS / study / "time.json"
    return read_record(path) if path.exists() else None


def collect(out: Path) -> None:
    """The records of a study, its times among them, by the experiment that they name."""
    for path in sorted([*(out / "records").glob("*.json"), *out.glob("time.json")]):
        target = RECORDS / read_record(path)["results"]["experiment"]
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target / path.name)


def collect_trial(run: Path) -> None:
    """The record of a finished run that judged a recipe on held-out images."""
    record = read_record(run / "record.json")
    if record["results"]["status"] != "finished" or record["results"]["split"] != "validation":
        raise SystemExit(f"{run.name} is not finished, or was not judged on held-out images: it is no trial")
    config = record["config"]
    if config["init"] is not None:
        # Which run of the study it began with, and not where that lay.
        config["init"] = "/".join(Path(config["init"]).parts[-3:])
        target = RECORDS / CONTINUED_TRIALS
    else:
        target = RECORDS / (TRIALS if config["model"]["arch"] == "lipconvnet" else RESIDUAL_TRIALS)
    target.mkdir(parents=True, exist_ok=True)
    write_record(target / f"{run.name}.json", record)
