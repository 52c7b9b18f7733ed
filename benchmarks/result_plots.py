"""The plots of RESULTS.md; each keeps a hash of what it shows, so that a test knows whether it is up to date."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from result_records import records
from tables import ROOT

IMAGES = ROOT / "docs" / "images"


@dataclass(frozen=True)
class Plot:
    """A picture of what the records hold; none is drawn while they hold nothing."""

    path: Path
    words: str
    shown: Callable[[], Any]
    lines: Callable[[Any, Any], None]

    def digest(self) -> str:
        """What it shows, as a hash."""
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
PLOTS = (DEPTH, MINUTES)
