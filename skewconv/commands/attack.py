"""skewconv attack: try to break the certificates of a run, or its predictions, and measure how tight they are."""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import tyro

from skewconv.choices import AttackName, AttackNorm, radius_name
from skewconv.commands import print_json, print_table
from skewconv.commands.flags import BatchSize, Device, Fast, ImageCount, Json, OtherData, Quiet, RunPath, SkipBad, Split
from skewconv.commands.keep import refuse_other_settings
from skewconv.config import to_dict
from skewconv.errors import ArgumentError, UnboundedModuleError
from skewconv.extras import optional
from skewconv.fields import refuse_unused, require, require_at_least, require_positive
from skewconv.progress import Progress
from skewconv.records import make_record, write_record
from skewconv.train.hardware import device_kind
from skewconv.train.places import existing_checkpoint, folder_for_results

if TYPE_CHECKING:
    from torch import Tensor, nn

    from skewconv.certify import AttackReport, Tightness
    from skewconv.certify.attack import Arithmetic
    from skewconv.train.judged import Judged

# The flags that each attack takes.
_OPTIONS = {
    "pgd": ("steps", "restarts", "step_size", "seed"),
    "fgsm": (),
    "autoattack": ("queries", "steps", "seed"),
    "rounding": ("neighbours", "seed"),
}
_TIGHTNESS = "tightness.json"
# Where --steps says nothing.
_STEPS = {"pgd": 200, "autoattack": 100}


class _Trial(NamedTuple):
    """One attack: how far, what it climbs, its options, what the record says of it, and where that is written."""

    fraction: float
    arithmetic: "Arithmetic"
    options: dict[str, Any]
    settings: dict[str, Any]
    file: Path


@dataclass(frozen=True)
class Attack:
    """Attack the images of a run: each at 0.99 and at the whole of its own certified radius, or all at --epsilon.

    A certificate is broken by a point within the radius that the certified float64 program classifies otherwise. Then
    the nearest boundary that can be found is measured, in radii. Writes attack-KIND.json, attack-KIND-1.json and
    tightness.json into the folder of the run, and every image that breaks a certificate. There must be none.
    """

    run_path: RunPath
    kind: AttackName = "pgd"
    """This is the attack; "rounding" goes to the nearest boundary and tries the floating-point numbers around it."""
    norm: AttackNorm = "l2"
    """The attack moves images within a ball of this norm."""
    epsilon: float | None = None
    """All images are attacked within this radius, in units of pixels in [0, 1]; each within its own by default."""
    fraction: tuple[float, ...] = (0.99, 1.0)
    """Each image is attacked within these shares of its own certified radius, one after the other."""
    arithmetic: Literal["model", "float64", "both"] | None = None
    """The attack climbs the model as it is, or the certified float64 program; "rounding" does both by default."""
    steps: int | None = None
    """PGD makes so many steps, 200 by default; each run of AutoAttack's APGD and FAB so many, 100 by default."""
    restarts: int = 5
    """PGD starts so many times, at random."""
    step_size: float | None = None
    """The steps of PGD have this length, as a share of the radius; 2.5 / steps by default."""
    queries: int = 5000
    """The Square attack of AutoAttack asks the network so many times."""
    neighbours: int = 100
    """The rounding search tries so many points around each boundary point."""
    tightness_steps: int = 100
    """The search for the nearest boundary makes so many steps; 0 leaves it out, and so does --epsilon."""
    seed: int = 0
    """The random starts are drawn from this seed."""
    fast: Fast = False
    data: OtherData = None
    skip_bad: SkipBad = False
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
        require_at_least(self, 1, "steps", "restarts", "queries", "neighbours", "images", "batch_size")
        require_at_least(self, 0, "tightness_steps")
        require_positive(self, "epsilon", "step_size")
        require(self, "seed", 0 <= self.seed < 2**63, "between 0 and 2^63 - 1")
        good = bool(self.fraction) and all(0 < f <= 1 for f in self.fraction)
        require(self, "fraction", good, "one or more shares, each above 0 and at most 1")
        others = {name for names in _OPTIONS.values() for name in names} - set(_OPTIONS[self.kind])
        refuse_unused(self, tuple(others), f"has no effect with --kind {self.kind}")
        if self.epsilon is not None:
            refuse_unused(self, ("fraction", "tightness_steps"), "has no effect with --epsilon")

    def run(self) -> int:
        """Certify, attack, judge; 1 if a certificate is broken."""
        place = existing_checkpoint(self.run_path)
        folder = folder_for_results(place, self.out)
        with Progress("starting", quiet=self.quiet) as progress:
            from skewconv.certify import attack_by_name, weights_hash
            from skewconv.certify.certificates import fast_function, function_facts
            from skewconv.train.judged import judged_images
            from skewconv.train.run import open_run

            run = open_run(place)
            other: dict[str, Any] = {"data": self.data, "skip_bad": self.skip_bad, "progress": progress}
            judged = judged_images(run, split=self.split, images=self.images, **other)
            trials = [self._trial(judged, *each, folder) for each in product(self._fractions(), self._arithmetics())]
            search = {**judged.facts(), "judged": len(judged), "search": {"steps": self.tightness_steps}}
            search |= {"function": None, **function_facts(self._tol())}
            if not self.overwrite:
                for trial in trials:
                    refuse_other_settings(trial.file, trial.settings)
                if self._searches():
                    refuse_other_settings(folder / _TIGHTNESS, search)
            # Refuses what the attack cannot do before anything is certified.
            attack_by_name(self.kind, self.norm, **trials[0].options)
            if self.kind == "autoattack":
                optional("torchattacks", "torchattacks", "attacks")
            model = fast_function(run.model, tuple(run.input_shape), self._tol()).to(device_kind(self.device))
            pictures, labels, index = judged.tensors()
            radii = self._radii(model, pictures, labels, progress)
            these: dict[str, Any] = {"index": index, "batch_size": self.batch_size, "progress": progress}
            reports = [self._attack(model, pictures, labels, radii, trial, **these) for trial in trials]
            saved = [path for report in reports for path in report.save(folder)]
            config, weights = to_dict(run.config), {"weights_sha256": weights_hash(run.model)}
            records = []
            for trial, report in zip(trials, reports, strict=True):
                results = {**report.results(), **trial.settings, **weights}
                records.append(make_record("attack", config=config, seed=self.seed, results=results))
                write_record(trial.file, records[-1])
            found = self._tightness(model, pictures, labels, radii, **these) if self._searches() else None
            if found is not None:
                results = {**found.results(), **search, **weights}
                records.append(make_record("tightness", config=config, seed=None, results=results))
                write_record(folder / _TIGHTNESS, records[-1])
        if self.json:
            print_json(records[0] if len(records) == 1 else {"records": records})
        else:
            for trial, report in zip(trials, reports, strict=True):
                self._print(
                    f"attack on {run.name}{', frozen at 1e-3' if self.fast else ''}", judged.title, trial, report
                )
            if found is not None:
                _print_tightness(f"tightness of the radii of {run.name}", found)
            for path in saved:
                print(f"saved     {path}")
        return 1 if any(report.violations for report in reports) or (found is not None and found.below) else 0

    def _tol(self) -> float | None:
        from skewconv.certify.certificates import FAST_TOLERANCE

        return FAST_TOLERANCE if self.fast else None

    def _fractions(self) -> tuple[float, ...]:
        return self.fraction if self.epsilon is None else self.fraction[:1]

    def _arithmetics(self) -> "list[Arithmetic]":
        chosen = self.arithmetic or ("both" if self.kind == "rounding" else "model")
        return ["float64", "model"] if chosen == "both" else [chosen]

    def _trial(self, judged: "Judged", fraction: float, arithmetic: "Arithmetic", folder: Path) -> "_Trial":
        from skewconv.certify.certificates import function_facts

        options = {name: getattr(self, name) for name in _OPTIONS[self.kind]}
        if "steps" in options and self.steps is None:
            options["steps"] = _STEPS[self.kind]
        ball = {"kind": self.kind, "norm": self.norm, "epsilon": self.epsilon, "fraction": fraction}
        attack = {**ball, "arithmetic": arithmetic, **options}
        name = "-".join(
            [
                f"attack-{self.kind}",
                *([arithmetic] if len(self._arithmetics()) > 1 else []),
                *([f"{fraction:g}"] if fraction != self.fraction[0] else []),
            ]
        )
        settings = {**judged.facts(), "images": len(judged), "attack": attack, **function_facts(self._tol())}
        return _Trial(fraction, arithmetic, options, settings, folder / f"{name}.json")

    def _attack(
        self,
        model: "nn.Module",
        images: "Tensor",
        labels: "Tensor",
        radii: "Tensor",
        trial: "_Trial",
        *,
        progress: Progress,
        **these: Any,
    ) -> "AttackReport":
        from skewconv.certify import attack_by_name, attack_certificates

        progress.start("attacking", "images")
        return attack_certificates(
            model,
            images,
            labels,
            radii,
            attack_by_name(self.kind, self.norm, **trial.options),
            norm=self.norm,
            epsilon=self.epsilon,
            fraction=trial.fraction,
            arithmetic=trial.arithmetic,
            progress=progress,
            **these,
        )

    def _searches(self) -> bool:
        """Whether the nearest boundary is looked for."""
        return self.tightness_steps > 0 and self.epsilon is None

    def _tightness(
        self,
        model: "nn.Module",
        images: "Tensor",
        labels: "Tensor",
        radii: "Tensor",
        *,
        progress: Progress,
        **these: Any,
    ) -> "Tightness":
        from skewconv.certify import BoundarySearch, measure_tightness

        progress.start("searching boundaries", "images")
        search = BoundarySearch(self.tightness_steps)
        return measure_tightness(model, images, labels, radii, search, progress=progress, **these)

    def _print(self, title: str, images: str, trial: "_Trial", report: "AttackReport") -> None:
        ball = f"{trial.fraction:g} of its own radius" if self.epsilon is None else f"at {radius_name(self.epsilon)}"
        climbed = "the float64 program" if trial.arithmetic == "float64" else "the model as it is"
        certified = "images with a certified radius above 0"
        if self.epsilon is not None:
            certified = f"certified accuracy at l2 radius {report.threshold:.4g}, which holds the attack's ball"
        rows = [
            (images, f"{report.images:,}"),
            ("attack steps, images times calls", f"{report.steps:,}"),
            ("clean accuracy", f"{report.clean_accuracy:.2%}"),
            ("accuracy under attack", f"{report.robust_accuracy:.2%}"),
            (certified, f"{report.certified_accuracy:.2%}"),
            ("mean l2 distance moved", f"{report.mean_distance:.4f}"),
            ("certificates broken, judged by the float64 program", str(len(report.violations))),
            ("predictions that changed in the model's own precision only", str(len(report.flips))),
        ]
        rows += [("remark", remark) for remark in report.remarks]
        print_table(f"{title}: {self.kind} in {self.norm}, {ball}, climbing {climbed}", rows)

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


def _print_tightness(title: str, found: "Tightness") -> None:
    def quotient(value: float | None) -> str:
        return "no boundary was found" if value is None else f"{value:.3f}"

    rows = [
        ("images with a radius", f"{found.images:,}"),
        ("boundary found", f"{found.found:,}"),
        ("attack steps, images times calls", f"{found.steps:,}"),
        ("distance found / radius, median", quotient(found.median)),
        ("distance found / radius, least", quotient(found.least)),
        ("certificates broken", str(len(found.below))),
    ]
    print_table(title, rows)
