"""The parts of RESULTS.md: its records and how they get there, its plots, and the section on ablations."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from findings import compared, noise_of
from tables import ROOT

from skewconv.records import read_record, write_record
from skewconv.reproduce.rows import chosen_rows
from skewconv.reproduce.table import markdown, table_of

RECORDS = ROOT / "benchmarks" / "records" / "reproduce"
# Runs that chose the reduced recipe, of LipConvnets and of ResNets.
TRIALS, RESIDUAL_TRIALS = "trials", "residual-trials"


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
    target = RECORDS / (TRIALS if record["config"]["model"]["arch"] == "lipconvnet" else RESIDUAL_TRIALS)
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
    for study, words in (
        ("flagship", "minutes"),
        ("flagship-found", "minutes, before"),
        ("flagship-before", "minutes, first"),
    ):
        for record in sorted(records(study), key=lambda record: record["config"]["minutes"]):
            points = [
                [each["minutes"], 100 * each["clean"], 100 * each["certified"]] for each in record["results"]["curve"]
            ]
            found.setdefault(f"{record['config']['minutes']:g} {words}", points)
    return found


def _minute_lines(axes: Any, curves: dict[str, list[list[float]]]) -> None:
    for budget, points in curves.items():
        minutes, clean, certified = zip(*points, strict=True)
        width = 1.8 if budget.endswith("minutes") else 0.8
        axes.plot(minutes, certified, linewidth=width, label=budget)
        axes.plot(minutes, clean, "--", linewidth=width, color=axes.lines[-1].get_color())
    axes.set(xlabel="minutes", xscale="log", ylabel="clean (dashed), certified at 36/255, %")
    ticks = [2, 5, 10, 20, 60, 240]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def by_epoch() -> dict[str, list[list[float]]]:
    """Row of Table 2 at depths 5 and 20 -> epoch and certified accuracy in percent on the way, of its first seed."""
    found: dict[str, list[list[float]]] = {}
    for record in records("table2"):
        results, model = record["results"], record["config"]["model"]
        if model["depth"] in (5, 20) and model["conv"] in ("soc", "bcop") and results["status"] == "finished":
            points = [[each["epoch"], 100 * each["certified"]] for each in results["curve"]]
            found.setdefault(f"{model['conv'].upper()}, depth {model['depth']}", points)
    return found


def _epoch_lines(axes: Any, curves: dict[str, list[list[float]]]) -> None:
    for name, points in curves.items():
        epochs, certified = zip(*points, strict=True)
        axes.plot(epochs, certified, "-" if "5" in name else "--", marker=".", label=name)
    axes.set(xlabel="epoch", ylabel="certified at 36/255, %")
    axes.xaxis.get_major_locator().set_params(integer=True)


def seconds_by_depth() -> dict[int, dict[str, float]]:
    """Depth -> network -> seconds of its fastest training step at the paper's width (`bench_depth.py`)."""
    found: dict[int, dict[str, float]] = {}
    for path in sorted((RECORDS.parent / "depth-time").glob("*.json")):
        for depth, of in read_record(path)["results"]["rows"].items():
            found.setdefault(int(depth), {}).update({name: min(seconds) for name, seconds in of.items()})
    return found


def _time_lines(axes: Any, seconds: dict[int, dict[str, float]]) -> None:
    names = {"soc": "SOC", "soc-circular": "SOC, circular", "bcop": "BCOP"}
    names |= {"algorithm-1": "Algorithm 1", "full-width-bcop": "BCOP at full width"}
    for name, words in names.items():
        style = "--" if name in ("algorithm-1", "full-width-bcop") else "-"
        axes.plot(list(seconds), [of[name] for of in seconds.values()], style, marker="o", label=words)
    axes.set(xlabel="depth of the LipConvnet", ylabel="seconds of a training step", yscale="log", xticks=list(seconds))
    # Room for the names of the lines.
    axes.set_ylim(top=8 * axes.get_ylim()[1])


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
EPOCHS = Plot(IMAGES / "results-epochs.png", "certified accuracy against epochs", by_epoch, _epoch_lines)
TIME = Plot(IMAGES / "results-time.png", "seconds of a training step against depth", seconds_by_depth, _time_lines)
PLOTS = (DEPTH, EPOCHS, TIME, MINUTES, RECIPE)


RADIUS = "36/255"


def certified(record: dict[str, Any]) -> float:
    """In percent; nothing is certified by a run that diverged."""
    results = record["results"]
    return 100 * results["certified"][RADIUS] if results["status"] == "finished" else 0.0


# Study -> others whose seeds vary alike, and what the page says of them: of their rows those of the same network count.
_LONGER = (("recipes", "refinements", "ablations", "table2"), ", in both rounds, the ablations and Table 2 at depth 5,")
_ALIKE = {
    "ablations": (("products",), ", here and at depth 5 of the training polynomials,"),
    "recipes": _LONGER,
    "refinements": _LONGER,
}
_OTHER_NETWORKS = tuple(f"lipconvnet-{depth}/" for depth in range(10, 45, 5))


def one_change(name: str, data: str) -> str:
    """One table, with the difference of each change from the base, and which of the differences seeds alone make."""
    found, every = records(name), chosen_rows(name, data, ("all",), "cpu")
    if not found:
        return f"Not run yet: `skewconv reproduce {name}`."
    shares = by_row(found)
    gone = sorted(shares.keys() - {row.name for row in every})
    rows = [*(row for row in every if row.name in shares), *(replace(every[0], name=row) for row in gone)]
    # Networks of the same size, as many epochs or as few, and more seeds: they say as much about the noise.
    alike, where = _ALIKE[name]
    found_elsewhere = [by_row(records(other)) for other in alike if other != name]
    others = [seeds for each in found_elsewhere for row, seeds in each.items() if not row.startswith(_OTHER_NETWORKS)]
    noise, base = noise_of([*shares.values(), *others]), shares.get(every[0].name)
    table = table_of(name, data, rows, found, None)
    notes, columns, lines = list(table.notes), table.columns, table.rows
    if noise is not None and base is not None:
        cells = []
        for row, line in zip(rows, lines, strict=True):
            difference, counts = compared(shares[row.name], base, noise)
            told = f"**{difference:+.2f}**" if counts else f"{difference:+.2f}"
            cells.append((*line, None if row is every[0] else told))
        columns, lines = (*columns, f"certified at {RADIUS} against the base"), tuple(cells)
        told = f"Between seeds the certified accuracy at {RADIUS}{where if others else ''} {noise.in_words()}."
        notes.append(f"Bold differences count. {told}")
    if gone:
        notes.append(f"No longer in the library, because they brought nothing: {', '.join(gone)}.")
    if missing := [row.name for row in every if row.name not in shares]:
        notes.append(f"Not run yet: {', '.join(missing)}.")
    return markdown(replace(table, columns=columns, rows=lines, notes=tuple(notes))).rstrip()


def by_row(found: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Row -> the certified accuracies of its seeds, in percent."""
    shares: dict[str, list[float]] = {}
    for record in found:
        shares.setdefault(record["results"]["row"], []).append(certified(record))
    return shares
