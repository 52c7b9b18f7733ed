"""skewconv attack: try to break the certificates of a run, or its predictions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from torch import Tensor

from skewconv.certify import attack_by_name, attack_certificates, certify_dataset
from skewconv.commands import print_json, print_table
from skewconv.commands.images import run_images
from skewconv.config import to_dict
from skewconv.errors import ArgumentError, UnboundedModuleError
from skewconv.records import make_record, write_record
from skewconv.train.evaluate import radius_name
from skewconv.train.hardware import Hardware
from skewconv.train.run import open_run


@dataclass(frozen=True)
class Attack:
    """Attack the test images of a run: each at 0.99 of its own certified radius, or all at --epsilon.

    Writes attack-KIND.json into the folder of the run, and every image that breaks a certificate. There must be none.
    """

    run_path: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(name="run")]
    """The folder of a run, or a checkpoint file."""
    kind: Literal["pgd", "fgsm", "autoattack"] = "pgd"
    """The attack."""
    norm: Literal["l2", "linf"] = "l2"
    """In which the ball is a ball."""
    epsilon: float | None = None
    """The radius for all images, in units of pixels in [0, 1]; each image's own by default."""
    fraction: float = 0.99
    """Of its own certified radius."""
    steps: int = 200
    """Of PGD."""
    restarts: int = 5
    """Of PGD."""
    step_size: float | None = None
    """Of PGD, in shares of the radius; 2.5 / steps by default."""
    queries: int = 5000
    """Of the Square attack in AutoAttack."""
    seed: int = 0
    """Of the random starts."""
    limit: int | None = None
    """How many of the test images, from the first; all by default."""
    batch_size: int = 256
    """Images at a time."""
    device: str = "cpu"
    """Where to compute: cpu, cuda or mps."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the record as JSON."""

    def run(self) -> int:
        """Certify, attack, judge; 1 if a certificate is broken."""
        run = open_run(self.run_path)
        images, labels = run_images(run, self.limit)
        model = run.model.to(Hardware(device=self.device).kind())  # type: ignore[arg-type]
        radii = self._radii(model, images, labels)
        options: dict[str, Any] = {"seed": self.seed}
        if self.kind == "pgd":
            options |= {"steps": self.steps, "restarts": self.restarts, "step_size": self.step_size}
        elif self.kind == "autoattack":
            options |= {"queries": self.queries}
        else:
            options = {}
        report = attack_certificates(
            model,
            images,
            labels,
            radii,
            attack_by_name(self.kind, self.norm, **options),
            norm=self.norm,
            epsilon=self.epsilon,
            fraction=self.fraction,
            batch_size=self.batch_size,
        )
        saved = report.save(run.path)
        settings = {"kind": self.kind, "norm": self.norm, "epsilon": self.epsilon, "fraction": self.fraction, **options}
        results = {**report.results(), "attack": settings}
        record = make_record("attack", config=to_dict(run.config), seed=self.seed, results=results)
        write_record(run.path / f"attack-{self.kind}.json", record)
        if self.json:
            print_json(record)
            return 1 if report.violations else 0
        ball = f"{self.fraction:g} of its own radius" if self.epsilon is None else f"at {radius_name(self.epsilon)}"
        rows = [
            ("test images", f"{report.images:,}"),
            ("clean accuracy", f"{report.clean_accuracy:.2%}"),
            (f"accuracy under attack ({self.kind}, {self.norm}, {ball})", f"{report.robust_accuracy:.2%}"),
            ("certified accuracy", f"{report.certified_accuracy:.2%}"),
            ("mean l2 distance moved", f"{report.mean_distance:.4f}"),
            ("certificates broken", str(len(report.violations))),
            ("predictions that changed in the model's own precision only", str(len(report.flips))),
        ]
        print_table(f"attack on {run.path}", rows)
        for path in saved:
            print(f"saved     {path}")
        return 1 if report.violations else 0

    def _radii(self, model: torch.nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        try:
            return certify_dataset(model, images, labels, batch_size=self.batch_size).radius
        except UnboundedModuleError:
            if self.epsilon is None:
                raise
            # Nothing is certified, and a network can be attacked all the same.
            return torch.zeros(len(images), dtype=torch.float64)
        except ArgumentError as error:
            raise ArgumentError(f"{error}; the run cannot be certified") from error
