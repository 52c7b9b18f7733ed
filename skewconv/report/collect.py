"""The runs of a report: their folders, what is missing and the command that makes it, their numbers side by side."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from skewconv.certify import THRESHOLDS, certified_accuracy, certify_dataset, mean_radius, weights_hash
from skewconv.certify.certificates import RECORD, TABLE, CertificateError, Certificates, read_table
from skewconv.config import to_dict
from skewconv.errors import SkewconvError
from skewconv.progress import clock_time
from skewconv.records import RecordError, radius_name, read_record
from skewconv.train.data import Dataset
from skewconv.train.environment import AUDIT, CSV_FILE, is_shipped, read_log
from skewconv.train.run import Run, eval_data, open_run

#: number of test images certified for a report where a run has no certificates
SAMPLE = 1000
#: the curves of a log: the points (epoch, value) of each column, where epochs are fractional
Curves: TypeAlias = dict[str, list[tuple[float, float]]]


def training_curves(rows: Sequence[dict[str, float]]) -> Curves:
    """The columns of a log."""
    steps: dict[float, float] = {}
    for row in rows:
        steps.setdefault(row["epoch"], row["step"])
    # Steps of an epoch, from the last one that was begun after the first.
    length = next((step / epoch for epoch, step in reversed(steps.items()) if epoch >= 1), 0.0)
    curves: Curves = {}
    for row in rows:
        at = row["step"] / length if length else row["epoch"]
        for name, value in row.items():
            curves.setdefault(name, []).append((at, value))
    return curves


@dataclass(frozen=True)
class RunFacts:
    """A run, read, with a name that no other of the report has; ``missing`` says how to make what is missing."""

    name: str
    run: Run
    record: dict[str, Any] | None
    log: Curves
    certificates: Certificates | None
    origin: str
    audit: dict[str, Any] | None
    attacks: tuple[dict[str, Any], ...]
    data: Dataset | None
    missing: tuple[str, ...]


def collect(paths: Sequence[Path | str], note: Callable[[str], None] = lambda text: None) -> list[RunFacts]:
    """Open and read runs, from folders or checkpoints; `note` is called with a sentence before a long computation."""
    runs = [open_run(path) for path in paths]
    return [_read(run, name, note) for run, name in zip(runs, run_names([run.name for run in runs]), strict=True)]


def run_names(paths: Sequence[str]) -> list[str]:
    """The shortest endings of the paths that are distinct.

    >>> run_names(["a/run", "b/run", "c/other"])
    ['a/run', 'b/run', 'other']
    """
    whole = [Path(path).absolute().parts for path in paths]
    names = []
    for parts in whole:
        others = [other for other in whole if other != parts]
        lengths = range(1, len(parts))
        length = next((n for n in lengths if all(other[-n:] != parts[-n:] for other in others)), len(parts))
        names.append("/".join(parts[-length:]))
    return [f"{name} ({names[:at].count(name) + 1})" if name in names[:at] else name for at, name in enumerate(names)]


def stored_record(run: Run, path: Path) -> dict[str, Any]:
    """A record in a run's folder, such as of an attack; a RecordError if it cannot be read, or is of other weights."""
    record = read_record(path)
    if path != run.record_path and record["results"].get("weights_sha256") != weights_hash(run.model):
        raise RecordError(f"{path.name} of these weights (what lies there is of others, from before the run went on)")
    return record


def stored_certificates(run: Run) -> tuple[Certificates | None, str]:
    """The certificates in the folder of a run and their origin; or None and the reason, '' if there are none."""
    if not (run.path / TABLE).exists():
        return None, ""
    try:
        facts = stored_record(run, run.path / RECORD)["results"]
        columns: dict[str, Any] = {**read_table(run.path / TABLE)}
        if facts.get("split", "test") != "test" or not len(columns["index"]):
            raise CertificateError(f"certificates of the test images ({TABLE} is empty, or of others)")
        classes = torch.cat([columns["label"], columns["prediction"]])
        if int(classes.min()) < 0 or int(classes.max()) >= len(run.data.classes):
            raise CertificateError(f"certificates of these classes ({TABLE} is of others)")
    except (CertificateError, RecordError) as error:
        return None, f"{error}: skewconv certify {run.name} --split test --overwrite"
    # Fast certificates are of another network than the one that was trained.
    fast = facts.get("function")
    frozen = f", of the network frozen at a tolerance of {fast['tol']:g}, not of the trained one" if fast else ""
    return Certificates(**columns, facts=facts), f"from {TABLE}{frozen}"


def _read(run: Run, name: str, note: Callable[[str], None]) -> RunFacts:
    missing: list[str] = []
    if run.unfinished:
        note(run.unfinished)
        missing.append(f"the end of its training: {run.unfinished}")

    def record(path: Path, what: str) -> dict[str, Any] | None:
        try:
            if path.exists():
                return stored_record(run, path)
            missing.append(what)
        except RecordError as error:
            missing.append(str(error))
        return None

    training = record(run.record_path, "the record of its training")
    certificates, origin = stored_certificates(run)
    if certificates is None:
        missing += [origin] if origin else []
        certificates, origin = _sampled(run, missing, note)
    audit = record(run.path / AUDIT, f"an audit of its layers: skewconv audit {run.name}")
    attacks = [record(path, path.name) for path in sorted(run.path.glob("attack*.json"))]
    missing += [] if attacks else [f"an attack: skewconv attack {run.name}"]
    data = None
    try:
        data = run.dataset()
    except SkewconvError as error:
        missing.append(f"its images: {error}")
    if is_shipped(run.checkpoint.path):
        # No command writes into the package.
        missing = [sentence for sentence in missing if "skewconv " not in sentence]
    whole = tuple(attack["results"] for attack in attacks if attack is not None)
    layers = None if audit is None else audit["results"]
    log = training_curves(read_log(run.path / CSV_FILE))
    return RunFacts(name, run, training, log, certificates, origin, layers, whole, data, tuple(missing))


def _sampled(run: Run, missing: list[str], note: Callable[[str], None]) -> tuple[Certificates | None, str]:
    """New certificates of a sample of the test images, and their origin."""
    try:
        sample = eval_data(run, split="test", images=SAMPLE)
        note(f"certifying {len(sample):,} test images of {run.name}")
        images, labels, index = sample.tensors()
        made = certify_dataset(run.model, images, labels, index=index)
    except SkewconvError as error:
        missing.append(f"certificates: {error}")
        return None, ""
    if len(sample) == sample.of:
        return made, "made for this report on all test images"
    some = f"{len(sample):,} of {sample.of:,} test images, evenly spread"
    missing.append(f"certificates of all test images, here are {some}: skewconv certify {run.name} --split test")
    return made, f"made for this report on {some}"


@dataclass(frozen=True)
class Metric:
    """A number of a run: its name, its text, and its value if larger ones are better."""

    name: str
    text: str
    value: float | None = None


def headline(facts: RunFacts) -> list[Metric]:
    """Accuracy, certified accuracy, mean radius, bound, size and time."""
    results: Mapping[str, Any] = (facts.record or {"results": {}})["results"]
    found: list[Metric] = []

    def share(name: str, value: float) -> None:
        found.append(Metric(name, f"{value:.2%}", value))

    if (table := facts.certificates) is not None:
        clean, mean = float((table.prediction == table.label).double().mean()), mean_radius(table.radius)
        found.append(Metric("test images", f"{len(table):,}"))
        share("clean accuracy", clean)
        for radius, certified in zip(THRESHOLDS, certified_accuracy(table.radius, THRESHOLDS), strict=True):
            share(f"certified at {radius_name(radius)}", certified)
        found.append(Metric("mean certified radius", f"{mean:.4f}", mean))
    elif "clean" in results:
        share(f"clean accuracy, {results.get('split', 'test')}", results["clean"])
    if "attacked" in results:
        share("accuracy under PGD", results["attacked"])
    if (bound := results.get("lipschitz_upper_bound")) is not None:
        found.append(Metric("Lipschitz bound", f"{bound:.4f}"))
    found.append(Metric("parameters", f"{sum(each.numel() for each in facts.run.model.parameters()):,}"))
    if "epochs" in results:
        found.append(Metric("epochs", f"{results['epochs']:.4g}"))
    if (seconds := results.get("seconds")) is not None:
        found.append(Metric("training time", clock_time(seconds), -float(seconds)))
    return found


@dataclass(frozen=True)
class Row:
    """One line of a comparison: the text of each run, True for the best, and True if the texts differ."""

    name: str
    cells: tuple[str, ...]
    best: tuple[bool, ...]
    differs: bool


def compare_metrics(runs: Sequence[RunFacts]) -> list[Row]:
    """The headline metrics of all runs, one line each; the best is marked where there is one."""
    return _compared([headline(facts) for facts in runs])


def compare_configs(runs: Sequence[RunFacts]) -> list[Row]:
    """Every setting of all runs, one line each."""
    return _compared([[Metric(name, text) for name, text in settings(facts).items()] for facts in runs])


def _compared(columns: Sequence[Sequence[Metric]]) -> list[Row]:
    rows = []
    named = [{metric.name: metric for metric in column} for column in columns]
    for name in dict.fromkeys(name for column in named for name in column):
        found = [column.get(name, Metric(name, "")) for column in named]
        values = {metric.value for metric in found if metric.value is not None}
        winner = max(values) if len(values) > 1 else math.nan
        texts = tuple(metric.text for metric in found)
        rows.append(Row(name, texts, tuple(metric.value == winner for metric in found), len(set(texts)) > 1))
    return rows


def settings(facts: RunFacts) -> dict[str, str]:
    """The config as names with dots and their values in words."""
    return dict(_flat(to_dict(facts.run.config)))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            radii = ", ".join(map(radius_name, value)) if name == "radii" else None
            yield prefix + name, radii or ("default" if value is None else str(value))


def provenance(facts: RunFacts) -> dict[str, str]:
    """Time, seed, versions, machine, commit and data of a run."""
    record = facts.record or {}
    found = {"finished": str(record.get("time", "not yet")), "seed": str(record.get("seed"))}
    found |= {f"{name} version": str(version) for name, version in record.get("versions", {}).items()}
    found |= {f"machine, {name}".replace("_", " "): str(value) for name, value in record.get("machine", {}).items()}
    if git := record.get("git"):
        found["commit"] = git["commit"] + (", with changes" if git["dirty"] else "")
    found["data"] = f"{facts.run.data.name}, {facts.run.data.fingerprint}"
    return found
