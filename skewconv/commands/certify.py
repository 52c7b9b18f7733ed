"""skewconv certify: proven radii for the test images of a run, and their check."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from torch import Tensor

from skewconv.certify import THRESHOLDS, certify_dataset
from skewconv.commands import print_json, print_table
from skewconv.commands.check import check_by_balls, check_by_second_path
from skewconv.commands.images import run_images
from skewconv.config import to_dict
from skewconv.errors import ArgumentError
from skewconv.train.evaluate import radius_name
from skewconv.train.hardware import Hardware
from skewconv.train.run import Run, open_run


@dataclass(frozen=True)
class Certify:
    """Prove, image by image, how far a picture can move before the prediction may change.

    Writes certificates.csv and certificates.json into the folder of the run, or into --out.
    """

    run_path: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(name="run")]
    """The folder of a run, or a checkpoint file."""
    radii: tuple[float, ...] = THRESHOLDS
    """The l2 radii at which certified accuracy is reported, in units of pixels in [0, 1]."""
    limit: int | None = None
    """How many of the test images, from the first; all by default."""
    check: Path | None = None
    """Check this file of certificates instead of making one: derive every radius anew by other code."""
    arithmetic: Literal["float64", "ball"] = "float64"
    """Of the check: float64 by the second path, or a proof in exact integers and balls (needs python-flint)."""
    images: tuple[int, ...] = ()
    """Which images to prove in ball arithmetic, by their index; the first --limit, or all, by default."""
    out: Path | None = None
    """Where to write; the folder of the run by default."""
    batch_size: int = 128
    """Images at a time."""
    hardware: tyro.conf.OmitArgPrefixes[Hardware] = field(default_factory=lambda: Hardware(device="cpu"))
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the record as JSON."""

    def run(self) -> int:
        """Certify, or check; 1 if a certificate does not hold."""
        run = open_run(self.run_path)
        if self.check is None:
            if self.arithmetic != "float64" or self.images:
                raise ArgumentError("--arithmetic and --images choose how to check: give --check FILE with them")
            return self._make(run, *run_images(run, self.limit))
        if self.arithmetic == "ball":
            return check_by_balls(run, self.check, self.limit, self.images, self.json)
        if self.images:
            raise ArgumentError("--images chooses what to prove with --arithmetic ball: the second path checks all")
        return check_by_second_path(run, self.check, self.limit, self.batch_size, self.json)

    def _make(self, run: Run, images: Tensor, labels: Tensor) -> int:
        folder = self.out or run.path
        if not folder.is_dir():
            raise ArgumentError(f"{folder} is not a folder: create it, or choose another --out")
        many = self.hardware.devices * self.hardware.nodes > 1 or "TORCHELASTIC_RUN_ID" in os.environ
        fabric: Any = self.hardware.fabric(run.config) if many else None
        device = None if many else self.hardware.kind()
        found = certify_dataset(run.model, images, labels, batch_size=self.batch_size, device=device, fabric=fabric)
        if fabric is not None and not fabric.is_global_zero:
            return 0
        record = found.write(folder, thresholds=self.radii, config=to_dict(run.config), seed=run.config.seed)
        if self.json:
            print_json(record)
            return 0
        results = record["results"]
        rows = [("test images", f"{results['images']:,}"), ("clean accuracy", f"{results['clean_accuracy']:.2%}")]
        for point in results["certified_accuracy"]:
            rows.append((f"certified accuracy at l2 radius {radius_name(point['radius'])}", f"{point['accuracy']:.2%}"))
        rows += [
            ("mean certified radius", f"{results['mean_radius']:.4f}"),
            ("proven Lipschitz bound, pixels to logits", f"{results['lipschitz_upper_bound']:.6f}"),
            ("subtracted from margins for rounding, at most", f"{results['margin_subtracted_at_most']:.1e}"),
        ]
        print_table(f"certificates of {run.path}", rows)
        print(f"next      skewconv certify {self.run_path} --check {folder / 'certificates.csv'}")
        return 0
