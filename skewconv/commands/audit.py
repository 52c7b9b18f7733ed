"""skewconv audit: proven and measured properties of each layer of a run."""

from dataclasses import dataclass

from skewconv.commands import Json, Quiet, ResultsFolder, RunPath, print_json
from skewconv.config import require, require_at_least
from skewconv.progress import Progress
from skewconv.records import write_record
from skewconv.train.environment import AUDIT, existing_checkpoint, results_folder


@dataclass(frozen=True)
class Audit:
    """Show each layer's proven Lipschitz bound, measured lower bound, singular values, norms, degree and error.

    Writes audit.json into the folder of the run, or into --out.
    """

    run_path: RunPath
    dense_limit: int = 2048
    """Largest number of inputs and outputs of layers whose singular values are computed."""
    steps: int = 60
    """Number of steps of the gradient ascents that measure."""
    seed: int = 0
    """Seed of the starting points of the ascents."""
    out: ResultsFolder = None
    quiet: Quiet = False
    json: Json = False

    def __post_init__(self) -> None:
        require_at_least(self, 1, "steps")
        require_at_least(self, 0, "dense_limit")
        require(self, "seed", 0 <= self.seed < 2**63, "between 0 and 2^63 - 1")

    def run(self) -> int:
        place = existing_checkpoint(self.run_path)
        folder = results_folder(place, self.out)
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
            print(format_audit(record))
        return 0
