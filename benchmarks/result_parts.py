"""The parts of RESULTS.md: its records and how they get there, its plots, and the section on ablations."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from findings import Noise, compared, noise_of
from tables import ROOT

from skewconv.records import read_record, write_record
from skewconv.reproduce.rows import Row, chosen_rows
from skewconv.reproduce.table import markdown, table_of

RECORDS = ROOT / "benchmarks" / "records" / "reproduce"
# Runs that chose the reduced recipe, of LipConvnets and of ResNets, and how a trained network is best trained on.
TRIALS, RESIDUAL_TRIALS, CONTINUED_TRIALS = "trials", "residual-trials", "continued-trials"


def records(study: str) -> list[dict[str, Any]]:
    """The records of a study, in the order of their names."""
    return [read_record(path) for path in sorted((RECORDS / study).glob("*.json")) if path.name != "time.json"]


def times(study: str) -> dict[str, Any] | None:
    """The measurements of `reproduce --time`, if there are any."""
    path = RECORDS / study / "time.json"
    return read_record(path) if path.exists() else None


def collect(out: Path) -> None:
    """The records of a study, its times among them, by the experiment that they name."""
    for path in sorted([*(out / "records").glob("*.json"), *out.glob("time.json")]):
        target = RECORDS / read_record(path)["results"]["experiment"]
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target / path.name)


def collect_trial(run: Path) -> None:
    """Copy the record of a finished run that evaluated a recipe on held-out images."""
    record = read_record(run / "record.json")
    if record["results"]["status"] != "finished" or record["results"]["split"] != "validation":
        raise SystemExit(f"{run.name} is not finished, or was not evaluated on held-out images: it is no trial")
    config = record["config"]
    if config["init"] is not None:
        # Which run of the study it began with, and not where that lay.
        config["init"] = "/".join(Path(config["init"]).parts[-3:])
        target = RECORDS / CONTINUED_TRIALS
    else:
        target = RECORDS / (TRIALS if config["model"]["arch"] == "lipconvnet" else RESIDUAL_TRIALS)
    target.mkdir(parents=True, exist_ok=True)
    write_record(target / f"{run.name}.json", record)


IMAGES = ROOT / "docs" / "images"


@dataclass(frozen=True)
class Plot:
    """A picture of what the records hold; none is drawn while they hold nothing."""

    path: Path
    words: str
    shown: Callable[[], Any]
    lines: Callable[[Any, Any], None]

    def digest(self) -> str:
        """A hash of the data shown."""
        return hashlib.sha256(json.dumps(self.shown(), sort_keys=True).encode()).hexdigest()

    def link(self) -> list[str]:
        """The picture, for the page."""
        return ["", f"![{self.words}]({self.path.relative_to(ROOT)})"] if self.path.exists() else []

    def draw(self) -> None:
        """Write the picture."""
        if not (shown := self.shown()):
            return
        import matplotlib

        matplotlib.use("svg")
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
        self.lines(axes, shown)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        figure.savefig(self.path, dpi=120, metadata={"Description": self.digest()})


def by_depth() -> dict[str, dict[int, list[float]]]:
    """Convolution -> depth -> certified accuracies in percent, of those with two depths or more."""
    found: dict[str, dict[int, list[float]]] = {}
    for record in records("table2"):
        if record["results"]["status"] == "finished":
            model = record["config"]["model"]
            shares = found.setdefault(model["conv"], {}).setdefault(model["depth"], [])
            shares.append(100 * record["results"]["certified"]["36/255"])
    return {conv: depths for conv, depths in sorted(found.items()) if len(depths) > 1}


def _depth_lines(axes: Any, shares: dict[str, dict[int, list[float]]]) -> None:
    for conv, depths in shares.items():
        means = [sum(values) / len(values) for _, values in sorted(depths.items())]
        axes.plot(sorted(depths), means, marker="o", label=conv.upper())
        for depth, values in depths.items():
            axes.plot([depth] * len(values), values, ".", color=axes.lines[-1].get_color(), alpha=0.4)
    ticks = sorted({depth for depths in shares.values() for depth in depths})
    axes.set(xlabel="depth of the LipConvnet", ylabel="certified at 36/255, %", xticks=ticks)


def by_minutes() -> dict[str, list[list[float]]]:
    """Budget -> minutes, clean and certified accuracy in percent on the way and at the end, of its first seed."""
    found: dict[str, list[list[float]]] = {}
    for record in records("flagship"):
        points = [
            [each["minutes"], 100 * each["clean"], 100 * each["certified"]] for each in record["results"]["curve"]
        ]
        found.setdefault(f"{record['config']['minutes']:g}", points)
    return dict(sorted(found.items(), key=lambda item: float(item[0])))


def _minute_lines(axes: Any, curves: dict[str, list[list[float]]]) -> None:
    for budget, points in curves.items():
        minutes, clean, certified = zip(*points, strict=True)
        axes.plot(minutes, certified, label=f"{budget} minutes")
        axes.plot(minutes, clean, "--", color=axes.lines[-1].get_color())
    axes.set(xlabel="minutes", xscale="log", ylabel="clean (dashed), certified at 36/255, %")
    ticks = [2, 5, 10, *map(float, curves)]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


DEPTH = Plot(IMAGES / "results-depth.png", "certified accuracy against depth", by_depth, _depth_lines)
MINUTES = Plot(IMAGES / "results-minutes.png", "accuracy against minutes", by_minutes, _minute_lines)


def recipe_losses() -> dict[str, list[float]]:
    """Network -> means of 20 losses in a row, of the paper's recipe and of Algorithm 1 written literally."""
    found = records("paper-recipe")
    losses = found[0]["results"]["losses"] if found else {}
    return {name: [sum(each[k : k + 20]) / 20 for k in range(0, len(each) - 19, 20)] for name, each in losses.items()}


def _recipe_lines(axes: Any, losses: dict[str, list[float]]) -> None:
    for name, style in (("ours", "-"), ("literal", "--")):
        label = {"ours": "skewconv, --scale paper", "literal": "Algorithm 1, written literally"}[name]
        axes.plot([20 * (k + 1) for k in range(len(losses[name]))], losses[name], style, label=label)
    axes.set(xlabel="steps of SGD", ylabel="loss, mean of 20 steps")


RECIPE = Plot(IMAGES / "paper-recipe.png", "loss against steps", recipe_losses, _recipe_lines)
PLOTS = (DEPTH, MINUTES, RECIPE)


RADIUS = "36/255"
SIZE = "lipconvnet-5/"
TITLES = {
    "series": "Series in training",
    "norm-bound": "Norm bound",
    "padding": "Border",
    "activation": "Activation",
    "head": "Head",
    "offset": "Offset of the loss",
    "average": "Average of the weights",
    "batch": "Batch",
    "flip": "Flips",
    "shift": "Shift",
}


def certified(record: dict[str, Any]) -> float:
    """In percent; nothing is certified by a run that diverged."""
    results = record["results"]
    return 100 * results["certified"][RADIUS] if results["status"] == "finished" else 0.0


def sentence(base: list[float], shares: dict[str, list[float]], noise: Noise) -> str:
    """The effect of each change on the certified accuracy, those within noise apart."""
    told: dict[bool, list[str]] = {True: [], False: []}
    for name, share in shares.items():
        difference, counts = compared(share, base, noise)
        told[counts].append(f"{name} {difference:+.2f}")
    parts = [f"{', '.join(told[True])} points"] if told[True] else []
    parts += [f"within noise: {', '.join(told[False])}"] if told[False] else []
    return f"Certified at {RADIUS} against the base: {'; '.join(parts)}."


def ablations(data: str) -> str:
    """Group by group, each beside the base."""
    found, measured = records("ablations"), times("ablations")
    first, *others = chosen_rows("ablations", data, ("all",), "cpu")
    shares = _by_row(found)
    # Table 2 has networks of the same size and epochs: their seeds say as much about the noise.
    noise = noise_of([*shares.values(), *(found for row, found in _by_row(records("table2")).items() if SIZE in row)])
    lines = []
    if noise is not None:
        lines += [
            f"Between seeds the certified accuracy at {RADIUS}, here and at depth 5 of Table 2, {noise.in_words()}.",
            "",
        ]
    notes: list[str] = []
    left: list[str] = []
    for what, group in groupby(others, key=lambda row: row.name.split("/")[0]):
        members = list(group)
        done = {row.name.split("/")[1]: shares[row.name] for row in members if row.name in shares}
        left += [row.name for row in members if row.name not in shares]
        if not done:
            continue
        told = sentence(shares[first.name], done, noise) if noise is not None and first.name in shares else ""
        lines += [f"**{TITLES[what]}.** {told}", "", *_cells(data, [first, *members], found, measured), ""]
        notes = markdown(table_of("ablations", data, [first, *members], found, measured)).splitlines()
    if left:
        lines += [f"Not run yet: {', '.join(left)}.", ""]
    return "\n".join([*lines, *(line for line in notes if line.startswith("- "))])


def _by_row(found: list[dict[str, Any]]) -> dict[str, list[float]]:
    shares: dict[str, list[float]] = {}
    for record in found:
        shares.setdefault(record["results"]["row"], []).append(certified(record))
    return shares


def _cells(data: str, rows: list[Row], found: list[dict[str, Any]], measured: dict[str, Any] | None) -> list[str]:
    text = markdown(table_of("ablations", data, rows, found, measured))
    return [line for line in text.splitlines() if line.startswith("|")]
