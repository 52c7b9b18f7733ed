"""What lies in the folder of a run, if it belongs to its weights: certificates, and records of audits and attacks."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skewconv.certify import weights_hash
from skewconv.certify.certificates import RECORD, TABLE, CertificateError, read_table
from skewconv.records import RecordError, read_record
from skewconv.train.run import Run

COLUMNS = ("index", "label", "prediction", "margin", "radius")


@dataclass(frozen=True)
class CertificateTable:
    """The columns of a table of certificates, (n,) each, and a sentence that says where they come from."""

    index: NDArray[np.int64]
    label: NDArray[np.int64]
    prediction: NDArray[np.int64]
    margin: NDArray[np.float64]
    radius: NDArray[np.float64]
    origin: str

    def __len__(self) -> int:
        return len(self.index)

    @property
    def right(self) -> NDArray[np.bool_]:
        """Which predictions are right: (n,)."""
        return self.prediction == self.label

    def certified_at(self, radius: float) -> float:
        """The share of the images whose radius is at least that, and above zero."""
        return float(np.mean((self.radius >= radius) & (self.radius > 0)))


def stored_certificates(run: Run) -> tuple[CertificateTable | None, str]:
    """The certificates of a run, or None and why those that lie there are not shown; no reason if none lie there."""
    if not (run.path / TABLE).exists():
        return None, ""
    again = f"skewconv certify {run.name} --split test --overwrite"
    try:
        facts = read_record(run.path / RECORD)["results"]
        if facts.get("split", "test") != "test":
            return None, f"certificates of the test images ({TABLE} is of others): {again}"
        if facts.get("weights_sha256") != weights_hash(run.model):
            return None, f"certificates of these weights ({TABLE} is of others): {again}"
        columns = {name: column.numpy() for name, column in read_table(run.path / TABLE).items()}
        origin = f"from {TABLE}{_of_which_function(facts)}"
        return CertificateTable(**{name: columns[name] for name in COLUMNS}, origin=origin), ""
    except (CertificateError, RecordError) as error:
        return None, str(error)


def _of_which_function(facts: Mapping[str, Any]) -> str:
    """Fast certificates are of another network than the one that was trained, and say so."""
    function = facts.get("function")
    return f", of the network frozen at a tolerance of {function['tol']:g}, not of the trained one" if function else ""


def stored_record(run: Run, path: Path) -> dict[str, Any]:
    """A record of a run, such as of an attack.

    Raises:
        RecordError: it cannot be read, or says that it is of other weights than the run has now.
    """
    record = read_record(path)
    if "weights_sha256" in record["results"] and record["results"]["weights_sha256"] != weights_hash(run.model):
        raise RecordError(f"{path.name} of these weights (what lies there is of others, from before the run went on)")
    return record
