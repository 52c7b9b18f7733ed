"""skewconv certify: proven radii for the images of a run, and their check."""

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from skewconv.choices import RADII
from skewconv.commands import print_json, print_table, program
from skewconv.commands.figures import figure_rows
from skewconv.commands.flags import BatchSize, Fast, ImageCount, Json, OtherData, Quiet, RunPath, SkipBad, Split
from skewconv.commands.keep import refuse_other_settings
from skewconv.config import to_dict
from skewconv.errors import ArgumentError
from skewconv.fields import refuse_unused, require, require_at_least
from skewconv.progress import Progress
from skewconv.train.hardware import Hardware
from skewconv.train.places import existing_checkpoint, folder_for_results

if TYPE_CHECKING:
    from skewconv.train.judged import Judged
    from skewconv.train.run import Run

_WHICH_NETWORK = {
    False: "radii     proven for the float64 program of the network; float32 is the program that it runs",
    True: "radii     proven for the float64 program of the network frozen at 1e-3; float32 is the program that it runs",
}


@dataclass(frozen=True)
class Certify:
    """Prove, image by image, how far a picture can move before the prediction may change.

    Writes certificates.csv and certificates.json into the folder of the run, or into --out.
    """

    run_path: RunPath
    data: OtherData = None
    skip_bad: SkipBad = False
    split: Split = None
    images: ImageCount = None
    radii: tuple[float, ...] = RADII
    """Certified accuracy is reported at these l2 radii, in units of pixels in [0, 1]; 36/255 may be written so."""
    fast: Fast = False
    check: Path | None = None
    """This file of certificates is checked by other code, which derives every radius anew, and none is made."""
    arithmetic: Literal["float64", "ball"] = "float64"
    """A check runs in float64, or is a proof in exact integers and balls (it needs python-flint)."""
    only: tuple[int, ...] = ()
    """A check in balls proves the certificates of these images, by their index; else of --images many, or of all."""
    out: Path | None = None
    """The certificates are written into this folder: by default into that of the run."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Certificates made with other settings, which stand in the same place, are replaced."""
    batch_size: BatchSize = 128
    hardware: tyro.conf.OmitArgPrefixes[Hardware] = field(default_factory=lambda: Hardware(device="cpu"))
    quiet: Quiet = False
    json: Json = False

    def __post_init__(self) -> None:
        require_at_least(self, 1, "images", "batch_size")
        good = bool(self.radii) and all(0 <= radius < float("inf") for radius in self.radii)
        require(self, "radii", good, "one or more numbers, 0 or more")
        if self.check is None:
            refuse_unused(self, ("arithmetic", "only"), "says how to check: give --check FILE with it")
        else:
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
        folder = folder_for_results(place, self.out) if self.check is None else None
        with Progress("starting", quiet=self.quiet) as progress:
            from skewconv.train.judged import judged_images
            from skewconv.train.run import open_run

            run = open_run(place)
            other: dict[str, Any] = {"data": self.data, "skip_bad": self.skip_bad, "progress": progress}
            if self.check is None:
                assert folder is not None
                judged = judged_images(run, split=self.split, images=self.images, **other)
                return self._make(run, judged, folder, progress)
            from skewconv.commands.check import check_by_balls, check_in_float64

            judged = judged_images(run, split=self.split, **other)
            if self.arithmetic == "ball":
                return check_by_balls(run, judged, self.check, self.images, self.only, progress, self.json)
            return check_in_float64(run, judged, self.check, self.batch_size, progress, self.json)

    def _make(self, run: "Run", judged: "Judged", folder: Path, progress: Progress) -> int:
        from skewconv.certify import certify_dataset
        from skewconv.certify.certificates import FAST_TOLERANCE, RECORD, function_facts

        tol = FAST_TOLERANCE if self.fast else None
        settings = {**judged.facts(), "images": len(judged), "function": None, **function_facts(tol)}
        if not self.overwrite:
            refuse_other_settings(folder / RECORD, settings)
        # Many processes share the work through Fabric; one needs no launching.
        fabric: Any = self.hardware.fabric(run.config, trains=False) if self.hardware.processes > 1 else None
        device = None if fabric is not None else self.hardware.kind()
        pictures, labels, index = judged.tensors()
        progress.start("certifying", "images")
        options: dict[str, Any] = {"batch_size": self.batch_size, "device": device, "fabric": fabric}
        options |= {"index": index, "files": judged.files, "progress": progress, "fast_tol": tol}
        found = certify_dataset(run.model, pictures, labels, **options)
        if fabric is not None and not fabric.is_global_zero:
            return 0
        seed, more = run.config.seed, judged.facts()
        record = found.write(folder, thresholds=self.radii, config=to_dict(run.config), seed=seed, more=more)
        progress.close()
        if self.json:
            print_json(record)
            return 0
        results = record["results"]
        rows = figure_rows(judged.title, results)
        rows.append(("subtracted from margins for rounding, at most", f"{results['margin_subtracted_at_most']:.1e}"))
        slack = results["float32_slack"]
        rows.append((f"and for float32 ({slack['kind']}), of each logit", f"{slack['logits']:.1e}"))
        print_table(f"certificates of {run.name}", rows)
        print(_WHICH_NETWORK[self.fast])
        print(f"next      {program()} certify {shlex.join(self._words_of_the_check(folder))}")
        return 0

    def _words_of_the_check(self, folder: Path) -> list[str]:
        """What `skewconv certify` has to be told to check the certificates on the images that they are of."""
        from skewconv.certify.certificates import TABLE

        which = [("--data", self.data), ("--split", self.split)]
        same = [word for flag, value in which if value is not None for word in (flag, value)]
        same += ["--skip-bad"] if self.skip_bad else []
        return [str(self.run_path), *same, "--check", str(folder / TABLE)]
