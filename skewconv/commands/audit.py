"""skewconv audit: what is proven of each layer of a run beside what is measured."""

from dataclasses import dataclass
from pathlib import Path

from skewconv.commands import print_json
from skewconv.commands.flags import Json, Quiet, RunPath, Switch
from skewconv.fields import require, require_at_least
from skewconv.progress import Progress
from skewconv.records import write_record
from skewconv.train.places import AUDIT, existing_checkpoint, folder_for_results


@dataclass(frozen=True)
class Audit:
    """Show each layer's proven Lipschitz bound, measured lower bound, singular values, norms, degree and error.

    Writes audit.json into the folder of the run, or into --out.
    """

    run_path: RunPath
    dense_limit: int = 2048
    """Singular values are computed for layers with at most so many inputs and outputs."""
    steps: int = 60
    """The gradient ascents that measure make so many steps."""
    seed: int = 0
    """The starting points of the ascents are drawn from this seed."""
    wide: Switch = False
    """The table shows every column, in about 145 characters a line, and explains them."""
    out: Path | None = None
    """The record is written into this folder: by default into that of the run."""
    quiet: Quiet = False
    json: Json = False

    def __post_init__(self) -> None:
        require_at_least(self, 1, "steps")
        require_at_least(self, 0, "dense_limit")
        require(self, "seed", 0 <= self.seed < 2**63, "between 0 and 2^63 - 1")

    def run(self) -> int:
        """Audit, write, print."""
        place = existing_checkpoint(self.run_path)
        folder = folder_for_results(place, self.out)
        with Progress("starting", quiet=self.quiet) as progress:
            from skewconv.certify import audit, format_audit
            from skewconv.train.run import open_run

            run = open_run(place)
            progress.start("auditing", "layers")
            options = {"dense_limit": self.dense_limit, "steps": self.steps, "seed": self.seed}
            record = audit(run.model, run.input_shape, **options, progress=progress)
            write_record(folder / AUDIT, record)
        if self.json:
            print_json(record)
        else:
            print(format_audit(record, wide=self.wide))
        return 0
