"""skewconv bench: how fast the layers are here, against the literal Algorithm 1 and others, with the proof beside."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from skewconv.bench import SUITES, Report, run_suite
from skewconv.commands import print_json
from skewconv.records import make_record, write_record


@dataclass(frozen=True)
class Bench:
    """Measure speed, memory and proven error side by side on this machine."""

    suites: tyro.conf.Positional[tuple[str, ...]] = ()
    """Which to run; all by default."""
    out: Path | None = None
    """A folder for the records, one JSON file for each suite."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the measurements as JSON."""

    def run(self) -> int:
        """Run the suites in turn."""
        records = []
        for name in self.suites or tuple(SUITES):
            report = run_suite(name)
            record = make_record("bench", config=report.config, seed=0, results=_results(report))
            records.append(record)
            if not self.json:
                print(report, flush=True)
            if self.out is not None:
                self.out.mkdir(parents=True, exist_ok=True)
                write_record(self.out / f"{name}.json", record)
        if self.json:
            print_json({"records": records})
        return 0


def _results(report: Report) -> dict[str, object]:
    return {
        "suite": report.suite,
        "entries": [dataclasses.asdict(entry) for entry in report.entries],
        "claims": [dataclasses.asdict(claim) for claim in report.claims],
    }
