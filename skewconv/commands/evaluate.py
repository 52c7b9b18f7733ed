"""skewconv evaluate: the metrics of a run again, from its checkpoint."""

from dataclasses import dataclass

from skewconv.commands import Device, EvalFlags, metric_rows, print_json, print_table
from skewconv.config import to_dict
from skewconv.progress import Progress
from skewconv.records import make_record
from skewconv.train.environment import device_kind, existing_checkpoint


@dataclass(frozen=True)
class Evaluate(EvalFlags):
    """Evaluate a trained network: the metrics of the end of training, from its checkpoint alone.

    On one machine they are the same to the last digit. Another processor or number of threads rounds differently, which
    may change the class of an image, rarely.
    """

    device: Device = "cpu"

    def run(self) -> int:
        place = existing_checkpoint(self.run_path)
        with Progress("starting", quiet=self.quiet) as progress:
            from skewconv.train.step import evaluate

            device, (run, images) = device_kind(self.device), self.open_run(place, progress)
            progress.start("evaluating", "images")
            metrics = evaluate(run.model.to(device), images.examples, run.config, device=device, progress=progress)
        results = {**images.facts(), **metrics.plain()}
        if self.json:
            config = to_dict(run.config)
            print_json(make_record("evaluate", config=config, seed=run.config.seed, results=results))
        else:
            print_table(f"{run.config.preset or run.config.data}: {run.name}", metric_rows(images.title, results))
        return 0
