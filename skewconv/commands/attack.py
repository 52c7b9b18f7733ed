"""skewconv attack: try to break the certificates of a run, or its predictions, and measure how tight they are."""

import contextlib
import sys
from collections import UserList
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from skewconv._version import __version__
from skewconv.choices import AttackName, AttackNorm
from skewconv.commands import (
    BatchSize,
    Device,
    EvalFlags,
    Fast,
    Overwrite,
    ResultsFolder,
    print_json,
    print_table,
    refuse_overwrite,
)
from skewconv.config import refuse_unused, require, require_at_least, require_positive, to_dict
from skewconv.errors import ArgumentError, SkewconvError, UnboundedModuleError
from skewconv.extras import optional
from skewconv.progress import Progress
from skewconv.records import RecordError, make_record, radius_name, read_record, write_record
from skewconv.train.environment import device_kind, existing_checkpoint, results_folder

if TYPE_CHECKING:
    from skewconv.certify import AttackReport, Tightness

# The flags of each attack.
_OPTIONS = {
    "pgd": ("steps", "restarts", "step_size", "seed"),
    "fgsm": (),
    "autoattack": ("queries", "steps", "seed"),
    "rounding": ("neighbours", "seed"),
}
_TIGHTNESS = "tightness.json"
_DEFAULT_STEPS = {"pgd": 200, "autoattack": 100}
# Freezing takes as long as this number of calls for one image; calls of an attack that does not know their number.
_FROZEN_FROM, _MANY_CALLS = 10_000, 2000


class Kept(UserList[dict[str, Any]]):
    """Outcomes of the batches of an attack: written whenever one is appended, read again after an interruption."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        super().__init__()
        self.path, self.settings = path, {**settings, "version": __version__}
        with contextlib.suppress(RecordError):
            before = read_record(path)["results"]
            if before.get("settings") == self._record()["results"]["settings"]:
                self.data = before["outcomes"]

    def append(self, item: dict[str, Any]) -> None:
        super().append(item)
        write_record(self.path, self._record())

    def _record(self) -> dict[str, Any]:
        results = {"settings": self.settings, "outcomes": self.data}
        return make_record("unfinished", config={}, seed=None, results=results)


@dataclass(frozen=True)
class Attack(EvalFlags):
    """Attack the images of a run: each at 99% and at 100% of its own certified radius, or all at --epsilon.

    A certificate is broken by a point within the radius that the certified float64 program classifies otherwise. Then
    the nearest boundary that can be found is measured, in radii. Writes attack-KIND.json, attack-KIND-1.json and
    tightness.json into the folder of the run, and every image that breaks a certificate. There must be none. An attack
    that was interrupted resumes where it was, batch by batch, if the same command is given again.
    """

    kind: AttackName = "pgd"
    """Attack; "rounding" goes to the nearest boundary and tries the floating-point numbers around it."""
    norm: AttackNorm = "l2"
    """Norm of the ball within which images are moved."""
    epsilon: float | None = None
    """Radius for all images, in units of pixels in [0, 1] (none: each image's own certified radius)."""
    fraction: tuple[float, ...] = (0.99, 1.0)
    """Attack radii, as shares of the certified radius of each image."""
    arithmetic: Literal["model", "float64", "both"] | None = None
    """Function that is attacked: the model as it is, or the certified float64 program (rounding: both by default)."""
    steps: int | None = None
    """Number of steps of PGD (none: 200), or of each run of AutoAttack's APGD and FAB (none: 100)."""
    restarts: int = 5
    """Number of random starts of PGD."""
    step_size: float | None = None
    """Step length of PGD, as a share of the radius (none: 2.5 / steps, and at least 1/40)."""
    queries: int = 5000
    """Number of queries of AutoAttack's Square attack."""
    neighbours: int = 100
    """Number of points around each boundary point that the rounding search tries."""
    tightness_steps: int = 100
    """Number of steps of the search for the nearest boundary (0: no search; none with --epsilon)."""
    seed: int = 0
    """Seed of the random starts."""
    fast: Fast = False
    out: ResultsFolder = None
    overwrite: Overwrite = False
    batch_size: BatchSize = 32
    device: Device = "cpu"

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
        try:
            return self._attack()
        except KeyboardInterrupt:
            print("The batches that ended are kept: the same command resumes the attack.", file=sys.stderr)
            raise

    def _attack(self) -> int:
        place = existing_checkpoint(self.run_path)
        folder = results_folder(place, self.out)
        with Progress("starting", quiet=self.quiet) as progress:
            from skewconv.certify import (
                BoundarySearch,
                attack_by_name,
                attack_certificates,
                data_hash,
                measure_tightness,
                weights_hash,
            )
            from skewconv.certify.certificates import FAST_TOLERANCE, fast_function, function_facts

            (run, data), tol = self.open_run(place, progress), FAST_TOLERANCE if self.fast else None
            facts, trials = {**data.facts(), **function_facts(tol)}, self._trials()
            settings = {file: {**facts, "images": len(data), "attack": trial} for file, trial in trials.items()}
            search = {"function": None, **facts, "judged": len(data), "search": {"steps": self.tightness_steps}}
            searches = {_TIGHTNESS: search} if self.tightness_steps > 0 and self.epsilon is None else {}
            for file, given in {} if self.overwrite else (settings | searches).items():
                refuse_overwrite(folder / file, given)
            # Refuses what the attack cannot do before anything is certified.
            attack = attack_by_name(self.kind, self.norm, **self._options())
            if self.kind == "autoattack":
                optional("torchattacks", "torchattacks", "attacks")
            model = fast_function(run.model, tuple(run.input_shape), tol).to(device_kind(self.device))
            images, labels, index = data.tensors()
            config, weights = to_dict(run.config), {"weights_sha256": weights_hash(run.model)}
            same = {**weights, "data_sha256": data_hash(images, labels), "batch_size": self.batch_size}
            kept = [
                Kept(folder / f"unfinished-{file}", {**given, **same}) for file, given in (settings | searches).items()
            ]
            radii = self._radii(model, images, labels, progress)
            these: dict[str, Any] = {"index": index, "batch_size": self.batch_size, "progress": progress}
            these["climbs"] = self._climbed(
                model, run.input_shape, int((radii > 0).sum()) * len(trials), attack, progress
            )
            frozen = these["climbs"] is not None
            reports, records, saved, found, parts = [], [], [], None, len(settings) + len(searches)
            for number, (file, trial) in enumerate(trials.items(), 1):
                progress.start(f"attack {number} of {parts}", "steps")
                options = {name: trial[name] for name in ("norm", "epsilon", "fraction", "arithmetic")}
                options |= {**these, "finished": kept[number - 1]}
                reports.append(attack_certificates(model, images, labels, radii, attack, **options))
                saved += reports[-1].save(folder)
                results = {**reports[-1].results(), **settings[file], **weights}
                records.append(make_record("attack", config=config, seed=self.seed, results=results))
            if searches:
                progress.start(f"boundaries, {parts} of {parts}", "steps")
                boundary, these["finished"], these["climbs"] = BoundarySearch(self.tightness_steps), kept[-1], None
                found = measure_tightness(model, images, labels, radii, boundary, **these)
                results = {**found.results(), **search, **weights}
                records.append(make_record("tightness", config=config, seed=None, results=results))
            for file, record, part in zip(settings | searches, records, kept, strict=True):
                write_record(folder / file, record)
                part.path.unlink(missing_ok=True)
        if self.json:
            print_json(records[0] if len(records) == 1 else {"records": records})
        else:
            title = f"attack on {run.name}{', frozen at 1e-3' if self.fast else ''}"
            for trial, report in zip(trials.values(), reports, strict=True):
                self._print(title, data.title, trial, report, frozen=frozen)
            if found is not None:
                _print_tightness(f"tightness of the radii of {run.name}", found)
            for path in saved:
                print(f"saved     {path}")
        return 1 if any(report.violations for report in reports) or (found is not None and found.below) else 0

    def _options(self) -> dict[str, Any]:
        options = {name: getattr(self, name) for name in _OPTIONS[self.kind]}
        return options | ({"steps": _DEFAULT_STEPS[self.kind]} if "steps" in options and self.steps is None else {})

    def _trials(self) -> dict[str, dict[str, Any]]:
        """The settings of each attack, by the file of its record: for each share of the radius, in each arithmetic."""
        chosen = self.arithmetic or ("both" if self.kind == "rounding" else "model")
        arithmetics = ["float64", "model"] if chosen == "both" else [chosen]
        trials = {}
        for fraction in self.fraction if self.epsilon is None else self.fraction[:1]:
            for arithmetic in arithmetics:
                name = [f"attack-{self.kind}"]
                name += [arithmetic] if len(arithmetics) > 1 else []
                name += [f"{fraction:g}"] if fraction != self.fraction[0] else []
                ball = {"kind": self.kind, "norm": self.norm, "epsilon": self.epsilon, "fraction": fraction}
                trials[f"{'-'.join(name)}.json"] = {**ball, "arithmetic": arithmetic, **self._options()}
        return trials

    def _radii(self, model: Any, images: Any, labels: Any, progress: Progress) -> Any:
        """The certified radii; zeros for a network without a bound, which can be attacked at one epsilon."""
        import torch

        from skewconv.certify import Certifier

        progress.start("certifying", "images")
        try:
            certifier, found = Certifier(model, tuple(images.shape[1:])), []
            for rows in torch.arange(len(images)).split(self.batch_size):
                found.append(certifier(images[rows], labels[rows]).radii.cpu())
                progress(int(rows[-1]) + 1, len(images))
            return torch.cat(found)
        except UnboundedModuleError:
            if self.epsilon is None:
                raise
            return torch.zeros(len(images), dtype=torch.float64)
        except ArgumentError as error:
            raise ArgumentError(f"{error}; the run cannot be certified") from error

    def _climbed(self, model: Any, shape: Any, attacks: int, attack: Any, progress: Progress) -> Any:
        """The model frozen, several times as fast, where that is repaid; None for the model itself.

        It only leads the way: the model and its certified program decide. The rounding search needs their own boundary.
        """
        from skewconv.certify.certificates import FAST_TOLERANCE
        from skewconv.frozen import freeze

        few = attacks * getattr(attack, "calls", _MANY_CALLS) < _FROZEN_FROM
        if self.fast or self.kind == "rounding" or few:
            return None
        progress.start("freezing")
        try:
            return freeze(model, shape, tol=FAST_TOLERANCE).model
        except SkewconvError:
            return None

    def _print(self, title: str, images: str, trial: dict[str, Any], report: "AttackReport", *, frozen: bool) -> None:
        own = self.epsilon is None
        ball = f"{trial['fraction']:g} of its own radius" if own else f"at {radius_name(trial['epsilon'])}"
        own_model = "a frozen copy" if frozen else "the model as it is"
        climbed = "the float64 program" if trial["arithmetic"] == "float64" else own_model
        around = f"certified accuracy at l2 radius {report.threshold:.4g}, which holds the attack's ball"
        rows = [
            (images, f"{report.images:,}"),
            ("attack steps, images times calls", f"{report.steps:,}"),
            ("clean accuracy", f"{report.clean_accuracy:.2%}"),
            ("accuracy under attack", f"{report.robust_accuracy:.2%}"),
            ("images with a certified radius above 0" if own else around, f"{report.certified_accuracy:.2%}"),
            ("mean l2 distance moved", f"{report.mean_distance:.4f}"),
            ("certificates broken, evaluated by the float64 program", str(len(report.violations))),
            ("predictions that changed in the model's own precision only", str(len(report.flips))),
            *(("remark", remark) for remark in report.remarks),
        ]
        print_table(f"{title}: {self.kind} in {self.norm}, {ball}, climbing {climbed}", rows)


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
