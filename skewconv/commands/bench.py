"""skewconv bench: speed of the layers here, against the literal Algorithm 1 and others, with the proven error."""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from skewconv.commands import Json, Quiet, is_the_program, print_json
from skewconv.errors import ArgumentError
from skewconv.progress import Progress
from skewconv.records import make_record, write_record
from skewconv.train.environment import keep_freed_memory, make_folder


@dataclass(frozen=True)
class Bench:
    """Measure speed, memory and proven error side by side on this machine.

    Suites: training-5 and training-20 (a step of a LipConvnet), inference-zeros and inference-circular (frozen
    networks), beside-bcop (narrow networks) and layers. All of them take about half an hour.
    """

    suites: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[SUITE ...]")] = ()
    """Suites (none: all)."""
    out: Path | None = None
    """Folder for the records, one JSON file for each suite."""
    quiet: Quiet = False
    json: Json = False

    def run(self) -> int:
        records = []
        with Progress("starting", quiet=self.quiet):
            from skewconv.bench import SUITES
        names = self.suites or tuple(SUITES)
        if unknown := [name for name in names if name not in SUITES]:
            raise ArgumentError(f"no suite is called {unknown[0]!r}: there are {', '.join(SUITES)}")
        if self.out is not None:
            make_folder(self.out)
        if is_the_program():
            # Otherwise a suite takes the longer, the more the one before it left in pieces.
            keep_freed_memory()
        for number, name in enumerate(names, 1):
            if not self.quiet:
                # No clock: it would be measured with the rest.
                print(f"measuring {name}, suite {number} of {len(names)}", file=sys.stderr)
            report = SUITES[name]()
            results = dataclasses.asdict(report)
            record = make_record("bench", config=results.pop("config"), seed=0, results=results)
            records.append(record)
            if not self.json:
                print(report, flush=True)
            if self.out is not None:
                write_record(self.out / f"{name}.json", record)
        if self.json:
            print_json({"records": records})
        return 0
