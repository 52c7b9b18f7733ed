"""skewconv audit: what is proved of each layer of a run beside what is measured."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from skewconv.certify import audit, format_audit
from skewconv.commands import print_json
from skewconv.records import write_record
from skewconv.train.run import open_run


@dataclass(frozen=True)
class Audit:
    """Show each layer's proven Lipschitz bound, measured lower bound, singular values, norms, degree and error.

    Writes audit.json into the folder of the run.
    """

    run_path: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(name="run")]
    """The folder of a run, or a checkpoint file."""
    dense_limit: int = 2048
    """Singular values are computed for layers with at most so many inputs and outputs."""
    steps: int = 60
    """Steps of the gradient ascents that measure."""
    seed: int = 0
    """Of their starting points."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the record as JSON."""

    def run(self) -> int:
        """Audit, write, print."""
        run = open_run(self.run_path)
        record = audit(run.model, run.input_shape, dense_limit=self.dense_limit, steps=self.steps, seed=self.seed)
        write_record(run.path / "audit.json", record)
        if self.json:
            print_json(record)
        else:
            print(format_audit(record))
        return 0
