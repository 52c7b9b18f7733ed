"""The figures of a run in a few words, and those of several side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skewconv.certify import THRESHOLDS
from skewconv.choices import radius_name
from skewconv.config import to_dict
from skewconv.progress import clock_time
from skewconv.report.collect import RunFacts


@dataclass(frozen=True)
class Figure:
    """A figure of a run: what it is, its value for a person, and as a number where more or less of it is better."""

    name: str
    text: str
    value: float | None = None
    more_is_better: bool = True


def headline(facts: RunFacts) -> list[Figure]:
    """Accuracy, certified accuracy, mean radius, bound, size and time."""
    found: list[Figure] = []
    if (table := facts.certificates) is not None:
        found.append(Figure("test images", f"{len(table):,}"))
        found.append(_share("clean accuracy", float(table.right.mean())))
        found += [_share(f"certified at {radius_name(r)}", table.certified_at(r)) for r in THRESHOLDS]
        mean = float(table.radius.mean())
        found.append(Figure("mean radius", f"{mean:.4f}", mean))
    results: Mapping[str, Any] = {} if facts.record is None else facts.record["results"]
    if table is None and "clean" in results:
        found.append(_share(f"clean accuracy, {results.get('split', 'test')}", results["clean"]))
    if "attacked" in results:
        found.append(_share("accuracy under PGD", results["attacked"]))
    if (bound := results.get("lipschitz_upper_bound")) is not None:
        found.append(Figure("Lipschitz bound", f"{bound:.4f}"))
    count = sum(parameter.numel() for parameter in facts.run.model.parameters())
    found.append(Figure("parameters", f"{count:,}"))
    if "epochs" in results:
        found.append(Figure("epochs", f"{results['epochs']:.4g}"))
    if (seconds := results.get("seconds")) is not None:
        found.append(Figure("training time", clock_time(seconds), float(seconds), more_is_better=False))
    return found


def _share(name: str, share: float) -> Figure:
    return Figure(name, f"{share:.2%}", share)


@dataclass(frozen=True)
class Row:
    """One line of a comparison: a cell for each run, which of them are best, and whether they differ."""

    name: str
    cells: tuple[str, ...]
    best: tuple[bool, ...]
    differs: bool


def compare_figures(runs: Sequence[RunFacts]) -> list[Row]:
    """The headline figures of all runs, one line each; the best is marked where there is a best."""
    columns = [{figure.name: figure for figure in headline(facts)} for facts in runs]
    rows = []
    for name in dict.fromkeys(name for column in columns for name in column):
        found = [column.get(name) for column in columns]
        texts = tuple("" if figure is None else figure.text for figure in found)
        values = [figure.value for figure in found if figure is not None and figure.value is not None]
        signs = {figure.more_is_better for figure in found if figure is not None}
        winner = (max if signs == {True} else min)(values) if len(values) > 1 and len(set(values)) > 1 else None
        best = tuple(winner is not None and figure is not None and figure.value == winner for figure in found)
        rows.append(Row(name, texts, best, len(set(texts)) > 1))
    return rows


def compare_configs(runs: Sequence[RunFacts]) -> list[Row]:
    """Every setting of all runs, one line each."""
    columns = [settings(facts) for facts in runs]
    rows = []
    for name in dict.fromkeys(name for column in columns for name in column):
        cells = tuple(column.get(name, "") for column in columns)
        rows.append(Row(name, cells, (False,) * len(cells), len(set(cells)) > 1))
    return rows


def settings(facts: RunFacts) -> dict[str, str]:
    """The config as names with dots and their values in words."""
    return dict(_flat(to_dict(facts.run.config)))


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{name}.")
        elif name == "radii" and isinstance(value, (list, tuple)):
            found.append((prefix + name, ", ".join(radius_name(float(radius)) for radius in value)))
        else:
            found.append((prefix + name, "default" if value is None else str(value)))
    return found


def provenance(facts: RunFacts) -> dict[str, str]:
    """Where the figures come from: time, seed, versions, machine, commit, hashes."""
    record = facts.record or {}
    found = {"finished": str(record.get("time", "not yet")), "seed": str(record.get("seed"))}
    found |= {f"{name} version": str(version) for name, version in record.get("versions", {}).items()}
    found |= {f"machine, {name}".replace("_", " "): str(value) for name, value in record.get("machine", {}).items()}
    if git := record.get("git"):
        found["commit"] = git["commit"] + (", with changes" if git["dirty"] else "")
    found["data"] = f"{facts.run.data.name}, {facts.run.data.fingerprint}"
    return found
