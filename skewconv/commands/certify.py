"""skewconv certify: certified radii for the images of a run, and their check."""

import math
import shlex
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from skewconv.choices import RADII
from skewconv.commands import (
    BatchSize,
    EvalFlags,
    Fast,
    Overwrite,
    ResultsFolder,
    metric_rows,
    print_json,
    print_table,
    refuse_overwrite,
)
from skewconv.config import refuse_unused, require, require_at_least, to_dict
from skewconv.errors import ArgumentError
from skewconv.progress import Progress
from skewconv.records import make_record
from skewconv.train.environment import Hardware, existing_checkpoint, results_folder

if TYPE_CHECKING:
    from skewconv.train.run import EvalData, Run

_LARGEST_LIST = 20


@dataclass(frozen=True)
class Certify(EvalFlags):
    """Certify images: a certified radius for each, within which no change alters the prediction.

    Writes certificates.csv and certificates.json into the folder of the run, or into --out.
    """

    radii: tuple[float, ...] = RADII
    """The l2 radii of the certified accuracies, in units of pixels in [0, 1], such as 36/255."""
    fast: Fast = False
    check: Path | None = None
    """Check this certificate file instead of creating one: hashes are compared and radii derived again (proven by
    independent code with --arithmetic ball)."""
    arithmetic: Literal["float64", "ball"] = "float64"
    """Arithmetic of --check: float64, or a proof in exact integers and balls (needs python-flint)."""
    only: tuple[int, ...] = ()
    """Indices of the images whose certificates a check in balls proves (none: --images many, or all)."""
    out: ResultsFolder = None
    overwrite: Overwrite = False
    batch_size: BatchSize = 128
    hardware: tyro.conf.OmitArgPrefixes[Hardware] = field(default_factory=lambda: Hardware(device="cpu"))

    def __post_init__(self) -> None:
        require_at_least(self, 1, "images", "batch_size")
        good = bool(self.radii) and all(0 <= radius < float("inf") for radius in self.radii)
        require(self, "radii", good, "one or more numbers, 0 or more")
        if self.check is None:
            refuse_unused(self, ("arithmetic", "only"), "says how to check: give --check FILE with it")
            return
        refuse_unused(self, ("radii", "out", "overwrite", "fast"), "has no effect with --check")
        if self.arithmetic == "float64":
            refuse_unused(self, ("only", "images"), "is for --arithmetic ball: in float64 all are checked")
        elif self.only:
            refuse_unused(self, ("images",), "has no effect with --only")
        if not self.check.exists():
            raise ArgumentError(f"--check is {self.check}, which does not exist: give a certificates.csv")

    def run(self) -> int:
        """Certify, or check; 1 if a certificate does not hold."""
        place = existing_checkpoint(self.run_path)
        folder = results_folder(place, self.out) if self.check is None else None
        with Progress("starting", quiet=self.quiet) as progress:
            # A check takes all images; in balls, --images is the number of certificates.
            run, images = self.open_run(place, progress, images=self.images if self.check is None else None)
            if self.check is None:
                assert folder is not None
                return self._certify(run, images, folder, progress)
            return self._check(run, images, self.check, progress)

    def _certify(self, run: "Run", images: "EvalData", folder: Path, progress: Progress) -> int:
        from skewconv.certify import certify_dataset
        from skewconv.certify.certificates import FAST_TOLERANCE, RECORD, TABLE, function_facts

        tol = FAST_TOLERANCE if self.fast else None
        settings = {**images.facts(), "images": len(images), "function": None, **function_facts(tol)}
        if not self.overwrite:
            refuse_overwrite(folder / RECORD, settings)
        # Many processes share the work through Fabric; one needs no launching.
        fabric: Any = self.hardware.fabric(run.config, trains=False) if self.hardware.processes > 1 else None
        device = None if fabric is not None else self.hardware.kind()
        pictures, labels, index = images.tensors()
        progress.start("certifying", "images")
        options: dict[str, Any] = {"batch_size": self.batch_size, "device": device, "fabric": fabric}
        options |= {"index": index, "files": images.examples.files, "progress": progress, "fast_tol": tol}
        found = certify_dataset(run.model, pictures, labels, **options)
        if fabric is not None and not fabric.is_global_zero:
            return 0
        seed, more = run.config.seed, images.facts()
        record = found.write(folder, thresholds=self.radii, config=to_dict(run.config), seed=seed, more=more)
        progress.close()
        if self.json:
            print_json(record)
            return 0
        results, slack = record["results"], record["results"]["float32_slack"]
        rows = metric_rows(images.title, results)
        rows.append(("subtracted from margins for rounding, at most", f"{results['margin_subtracted_at_most']:.1e}"))
        rows.append((f"and for float32 ({slack['kind']}), of each logit", f"{slack['logits']:.1e}"))
        print_table(f"certificates of {run.name}", rows)
        network = "the network frozen at 1e-3" if self.fast else "the network"
        print(f"radii     proven for the float64 program of {network}; float32 is the program that it runs")
        which = [("--data", self.data), ("--split", self.split)]
        same = [word for flag, value in which if value is not None for word in (flag, value)]
        same += ["--skip-bad"] if self.skip_bad else []
        print(f"next      skewconv certify {shlex.join([str(self.run_path), *same, '--check', str(folder / TABLE)])}")
        return 0

    def _check(self, run: "Run", images: "EvalData", file: Path, progress: Progress) -> int:
        """Derive every radius again in float64, or prove the chosen ones in balls; 1 if a certificate does not hold."""
        from skewconv.certify import check_certificates, check_in_balls

        pictures, labels, _ = images.tensors()
        if self.arithmetic == "float64":
            progress.start("checking", "images")
            options: dict[str, Any] = {"batch_size": self.batch_size, "progress": progress}
            report, title = check_certificates(file, run.model, pictures, labels, **options), "derived again in float64"
            ratio = ("largest radius claimed / derived", f"{report.largest_ratio:.9f}")
            rows, more = [("certificates checked", f"{report.checked:,} of {len(images):,} images"), ratio], {}
        else:
            chosen = self.only or self._spread(file)
            progress.start("proving in ball arithmetic")
            report, title = check_in_balls(file, run.model, pictures, labels, chosen), "ball arithmetic"
            more = {"error_of_logits": report.error, "layers": [asdict(line) for line in report.layers]}
            rows = [("certificates checked", f"{report.checked:,}")]
            rows += [
                (f"{line.name} ({line.kind})", f"norm <= {_up(line.norm)}, gain <= {_up(line.lipschitz)}")
                for line in report.layers
                if line.norm is not None
            ]
            rows += [
                ("proven Lipschitz bound, pixels to logits", _up(report.lipschitz)),
                ("error of the logits, at most", f"{report.error:.1e}"),
                ("least of 1 - radius claimed / proven", f"{1 - report.largest_ratio:.1e}"),
            ]
        progress.close()
        problems = list(report.problems)
        if self.json:
            known: dict[str, Any] = {"arithmetic": self.arithmetic, "sound": report.sound, "checked": report.checked}
            known |= {"largest_ratio": report.largest_ratio, "lipschitz_upper_bound": report.lipschitz}
            results = {**known, **more, "problems": problems}
            print_json(make_record("check", config=to_dict(run.config), seed=run.config.seed, results=results))
        else:
            verdict = "every certificate holds" if report.sound else f"{len(problems)} problems"
            print_table(f"{title}: {file}", [*rows, ("verdict", verdict)])
            print("\n".join(problems[:_LARGEST_LIST]), end="\n" if problems else "")
            if len(problems) > _LARGEST_LIST:
                print(f"and {len(problems) - _LARGEST_LIST} more: --json lists them all")
        return 0 if report.sound else 1

    def _spread(self, file: Path) -> list[int] | None:
        """The indices of --images certificates, spread evenly over the file; None for all."""
        from skewconv.certify.certificates import read_table, table_in

        there, count = sorted(read_table(table_in(file))["index"].tolist()), self.images
        if count is not None and count > len(there):
            raise ArgumentError(f"--images is {count}: there are {len(there)} certificates")
        return None if count is None else [there[place * len(there) // count] for place in range(count)]


def _up(value: float) -> str:
    return f"{math.ceil(value * 1e9) / 1e9:.9f}"
