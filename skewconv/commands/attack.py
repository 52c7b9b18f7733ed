"""skewconv attack: try to break the certificates of a run, or its predictions."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from skewconv.choices import radius_name
from skewconv.commands import print_json, print_table
from skewconv.commands.flags import BatchSize, Device, ImageCount, Json, Quiet, RunPath, Split
from skewconv.commands.keep import refuse_other_settings
from skewconv.config import to_dict
from skewconv.errors import ArgumentError, UnboundedModuleError
from skewconv.fields import refuse_unused, require, require_at_least, require_positive
from skewconv.progress import Progress
from skewconv.records import make_record, write_record
from skewconv.train.hardware import device_kind
from skewconv.train.places import existing_checkpoint

if TYPE_CHECKING:
    from torch import Tensor, nn

    from skewconv.certify import AttackReport

# The flags that each attack takes.
_OPTIONS = {"pgd": ("steps", "restarts", "step_size", "seed"), "fgsm": (), "autoattack": ("queries", "seed")}


@dataclass(frozen=True)
class Attack:
    """Attack the images of a run: each at 0.99 of its own certified radius, or all at --epsilon.

    Writes attack-KIND.json into the folder of the run, and every image that breaks a certificate. There must be none.
    """

    run_path: RunPath
    kind: Literal["pgd", "fgsm", "autoattack"] = "pgd"
    """This is the attack."""
    norm: Literal["l2", "linf"] = "l2"
    """The attack moves images within a ball of this norm."""
    epsilon: float | None = None
    """All images are attacked within this radius, in units of pixels in [0, 1]; each within its own by default."""
    fraction: float = 0.99
    """Each image is attacked within this share of its own certified radius."""
    steps: int = 200
    """PGD makes so many steps."""
    restarts: int = 5
    """PGD starts so many times, at random."""
    step_size: float | None = None
    """The steps of PGD have this length, as a share of the radius; 2.5 / steps by default."""
    queries: int = 5000
    """The Square attack of AutoAttack asks the network so many times."""
    seed: int = 0
    """The random starts are drawn from this seed."""
    split: Split = None
    images: ImageCount = None
    out: Path | None = None
    """The record is written into this folder: by default into that of the run."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """A record of an attack with other settings, which stands in the same place, is replaced."""
    batch_size: BatchSize = 256
    device: Device = "cpu"
    quiet: Quiet = False
    json: Json = False

    def __post_init__(self) -> None:
        require_at_least(self, 1, "steps", "restarts", "queries", "images", "batch_size")
        require_positive(self, "epsilon", "step_size")
        require(self, "fraction", 0 < self.fraction <= 1, "above 0 and at most 1")
        others = {name for names in _OPTIONS.values() for name in names} - set(_OPTIONS[self.kind])
        refuse_unused(self, tuple(others), f"has no effect with --kind {self.kind}")
        if self.epsilon is not None:
            refuse_unused(self, ("fraction",), "has no effect with --epsilon")

    def run(self) -> int:
        """Certify, attack, judge; 1 if a certificate is broken."""
        place = existing_checkpoint(self.run_path)
        folder = self.out or place.parent
        if not folder.is_dir():
            raise ArgumentError(f"--out is {folder}, which is not a folder: create it, or choose another")
        with Progress("starting", quiet=self.quiet) as progress:
            from skewconv.certify import attack_by_name, attack_certificates
            from skewconv.train.judged import judged_images
            from skewconv.train.run import open_run

            run = open_run(place)
            judged = judged_images(run, split=self.split, images=self.images)
            options: dict[str, Any] = {name: getattr(self, name) for name in _OPTIONS[self.kind]}
            ball = {"kind": self.kind, "norm": self.norm, "epsilon": self.epsilon, "fraction": self.fraction}
            settings = {"split": judged.name, "images": len(judged), "attack": {**ball, **options}}
            file = folder / f"attack-{self.kind}.json"
            if not self.overwrite:
                refuse_other_settings(file, settings)
            model = run.model.to(device_kind(self.device))
            pictures, labels, _ = judged.tensors()
            radii = self._radii(model, pictures, labels, progress)
            progress.start("attacking", "images")
            report = attack_certificates(
                model,
                pictures,
                labels,
                radii,
                attack_by_name(self.kind, self.norm, **options),
                norm=self.norm,
                epsilon=self.epsilon,
                fraction=self.fraction,
                batch_size=self.batch_size,
                progress=progress,
            )
            saved = report.save(folder)
            results = {**report.results(), **settings}
            record = make_record("attack", config=to_dict(run.config), seed=self.seed, results=results)
            write_record(file, record)
        if self.json:
            print_json(record)
        else:
            self._print(f"attack on {run.path}", judged.title, report)
            for path in saved:
                print(f"saved     {path}")
        return 1 if report.violations else 0

    def _print(self, title: str, images: str, report: "AttackReport") -> None:
        ball = f"{self.fraction:g} of its own radius" if self.epsilon is None else f"at {radius_name(self.epsilon)}"
        certified = "images with a certified radius above 0"
        if self.epsilon is not None:
            certified = f"certified accuracy at l2 radius {report.threshold:.4g}, which holds the attack's ball"
        rows = [
            (images, f"{report.images:,}"),
            ("clean accuracy", f"{report.clean_accuracy:.2%}"),
            (f"accuracy under attack ({self.kind}, {self.norm}, {ball})", f"{report.robust_accuracy:.2%}"),
            (certified, f"{report.certified_accuracy:.2%}"),
            ("mean l2 distance moved", f"{report.mean_distance:.4f}"),
            ("certificates broken", str(len(report.violations))),
            ("predictions that changed in the model's own precision only", str(len(report.flips))),
        ]
        print_table(title, rows)

    def _radii(self, model: "nn.Module", images: "Tensor", labels: "Tensor", progress: Progress) -> "Tensor":
        import torch

        from skewconv.certify import certify_dataset

        progress.start("certifying", "images")
        try:
            return certify_dataset(model, images, labels, batch_size=self.batch_size, progress=progress).radius
        except UnboundedModuleError:
            if self.epsilon is None:
                raise
            # Nothing is certified, and a network can be attacked all the same.
            return torch.zeros(len(images), dtype=torch.float64)
        except ArgumentError as error:
            raise ArgumentError(f"{error}; the run cannot be certified") from error
