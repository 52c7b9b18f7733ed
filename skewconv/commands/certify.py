"""skewconv certify: proven radii for the test images of a run, and their check."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from torch import Tensor

from skewconv.certify import THRESHOLDS, certify_dataset, check_certificates
from skewconv.commands import print_json, print_table
from skewconv.config import to_dict
from skewconv.errors import ArgumentError
from skewconv.records import make_record
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
    """Check this file of certificates by a second path instead of making one."""
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
        images, labels = run_images(run, self.limit)
        return self._make(run, images, labels) if self.check is None else self._check(run, images, labels, self.check)

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

    def _check(self, run: Run, images: Tensor, labels: Tensor, file: Path) -> int:
        report = check_certificates(file, run.model, images, labels, batch_size=self.batch_size)
        results = {
            "sound": report.sound,
            "checked": report.checked,
            "largest_ratio": report.largest_ratio,
            "lipschitz_upper_bound": report.lipschitz,
            "problems": list(report.problems),
        }
        if self.json:
            print_json(make_record("check", config=to_dict(run.config), seed=run.config.seed, results=results))
        else:
            verdict = "every certificate holds" if report.sound else f"{len(report.problems)} problems"
            rows = [
                ("certificates checked", f"{report.checked:,}"),
                ("largest radius claimed / derived", f"{report.largest_ratio:.9f}"),
                ("verdict", verdict),
            ]
            print_table(f"second path: {file}", rows)
            print("\n".join(report.problems[:20]), end="\n" if report.problems else "")
        return 0 if report.sound else 1


def run_images(run: Run, limit: int | None) -> tuple[Tensor, Tensor]:
    """The test images of a run, (n, C, H, W) float32 in [0, 1], and their labels (n,): as training shows them."""
    if limit is not None and limit < 1:
        raise ArgumentError(f"limit is {limit}: it must be at least 1")
    split = run.dataset().test
    images = torch.tensor(split.images[:limit]).to(torch.float32).div_(255)
    return images, torch.tensor(split.labels[:limit])
