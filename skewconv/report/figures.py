"""The figures of a report: each a function from runs to a drawing; their colours on the page and on paper."""

import html
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from skewconv.certify import THRESHOLDS
from skewconv.certify import certified_accuracy as certified_shares
from skewconv.certify.certificates import Certificates
from skewconv.choices import radius_name
from skewconv.extras import optional
from skewconv.report.collect import RunFacts


@dataclass(frozen=True)
class Theme:
    """The colours of a figure: text, muted lines, grid, and one for each run."""

    ink: str
    muted: str
    grid: str
    series: tuple[str, ...]

    def colour(self, number: int) -> str:
        """The colour of a run."""
        return self.series[number % len(self.series)]


#: placeholders that :func:`inline_svg` replaces by variables of the style sheet
PAGE = Theme("#0a0b01", "#0a0b02", "#0a0b03", tuple(f"#0a0c0{number}" for number in range(1, 7)))
#: Okabe and Ito's colours for colour-blind readers, on white
PAPER = Theme("#000000", "#555555", "#d9d9d9", ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9"))
_VARIABLES = {PAGE.ink: "var(--ink)", PAGE.muted: "var(--muted)", PAGE.grid: "var(--grid)"} | {
    colour: f"var(--series-{number})" for number, colour in enumerate(PAGE.series, 1)
}


def drawing_settings(theme: Theme) -> dict[str, Any]:
    """Matplotlib's settings for a theme."""
    ink = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), theme.ink)
    muted = dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), theme.muted)
    off = dict.fromkeys(("axes.spines.top", "axes.spines.right", "axes.unicode_minus", "legend.frameon"), False)
    clear = dict.fromkeys(("axes.facecolor", "figure.facecolor", "svg.fonttype"), "none")
    sizes = {"font.size": 9, "grid.linewidth": 0.6, "legend.fontsize": 8.5, "lines.linewidth": 1.6}
    grid = {"axes.grid": True, "axes.axisbelow": True, "grid.color": theme.grid}
    return {"font.family": "DejaVu Sans", **ink, **muted, **off, **clear, **sizes, **grid}


def new_axes(height: float = 2.7, width: float = 4.6) -> Any:
    """The axes of an empty figure, in inches, that leaves room for its own labels."""
    kind = optional("matplotlib.figure", "matplotlib", "report").Figure
    return kind((width, height), layout="constrained").add_subplot()


def plain(text: str) -> str:
    r"""Text that matplotlib draws literally: no formulas between dollars, no label skipped for its underscore.

    >>> plain("a$b$"), plain("_run") == "_run"
    ('a\\$b\\$', False)
    """
    escaped = text.replace("$", r"\$")
    return "\u200b" + escaped if escaped.startswith("_") else escaped


def inline_svg(figure: Any, name: str, attributes: Mapping[str, str]) -> str:
    """A figure in the theme PAGE as an svg element: no size, colours from the style sheet, ids that begin with name."""
    text = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with optional("matplotlib", "matplotlib", "report").rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata=nothing, transparent=True)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", svg, flags=re.DOTALL)
    for before, after in (('id="', '"'), ('href="#', '"'), (r"url\(#", r"\)")):
        svg = re.sub(rf"(\b{before})([^{after}]+{after})", rf"\1{name}-\2", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, variable)
    svg = re.sub(r"font: ([^;\"]*?)'DejaVu Sans'[^;\"]*", r"font: \1var(--font)", svg)
    box = re.search(r'viewBox="[^"]+"', svg)
    assert box is not None
    words = " ".join(f'{key}="{html.escape(value)}"' for key, value in attributes.items())
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box[0]} {words}>{svg[svg.index(">") + 1 :]}'


Draw = Callable[[Sequence[RunFacts], Theme], Any | None]


def certified_accuracy(runs: Sequence[RunFacts], theme: Theme) -> Any | None:
    """The share of the test images that is right and certified, against the radius; attacks as crosses."""
    shown = _certified(runs)
    if not shown:
        return None
    axes, end = new_axes(3.0), largest_radius(runs)
    for number, facts, _ in shown:
        radii, shares = curve(facts, end)
        axes.plot(radii, 100 * shares, color=theme.colour(number), label=plain(facts.name))
        for attack in facts.attacks:
            at, share = attacked_radius(attack), attack.get("attacked")
            if at is not None and at <= end and share is not None:
                axes.plot([at], [100 * share], "x", color=theme.colour(number), markersize=6)
    for place, radius in enumerate(each for each in THRESHOLDS if each < end):
        axes.axvline(radius, color=theme.muted, linewidth=0.7, linestyle=(0, (2, 3)))
        # On two lines in turn, since radii may be near each other.
        axes.text(radius, 101 + 5 * (place % 2), radius_name(radius), color=theme.muted, fontsize=7.5, ha="center")
    axes.set(xlim=(0, end), ylim=(0, 100), xlabel="l2 radius, pixels in [0, 1]", ylabel="certified accuracy, %")
    return _finished(axes, len(shown))


def radius_histogram(runs: Sequence[RunFacts], theme: Theme) -> Any | None:
    """The share of the test images that has each radius; those with none are left out."""
    shown, edges = _certified(runs), np.linspace(0, largest_radius(runs), 41)
    counts = [np.histogram(table.radius[(table.radius > 0) & table.radius.isfinite()], edges)[0] for *_, table in shown]
    if not any(count.any() for count in counts):
        return None
    axes = new_axes()
    for (number, facts, table), count in zip(shown, counts, strict=True):
        shares = 100 * count / len(table)
        axes.stairs(shares, edges, fill=True, color=theme.colour(number), alpha=0.35 if len(shown) > 1 else 0.6)
        axes.stairs(shares, edges, color=theme.colour(number), label=plain(facts.name), linewidth=1.2)
    axes.set(xlim=(0, edges[-1]), xlabel="certified l2 radius", ylabel="share of test images, %")
    return _finished(axes, len(shown))


def training_loss(runs: Sequence[RunFacts], theme: Theme) -> Any | None:
    """Loss on the training batches against the epoch."""
    return _lines(runs, theme, [("loss", "-", "")], "loss on training batches")


def training_accuracy(runs: Sequence[RunFacts], theme: Theme) -> Any | None:
    """Accuracy on training batches and on the evaluated images, against the epoch."""
    kinds = [("accuracy", ":", "training"), ("_clean", "-", "clean"), ("_certified", "--", "certified")]
    return _lines(runs, theme, kinds, "accuracy, %", scale=100)


def seconds_per_epoch(runs: Sequence[RunFacts], theme: Theme) -> Any | None:
    """Seconds of each epoch."""
    logs = [(number, facts.name, facts.log.seconds_per_epoch) for number, facts in enumerate(runs)]
    shown = [(number, name, points) for number, name, points in logs if points]
    if not shown:
        return None
    axes = new_axes(2.3)
    for number, name, points in shown:
        axes.plot(*zip(*points, strict=True), "o-", color=theme.colour(number), label=plain(name), markersize=3)
    axes.set(xlabel="epoch", ylabel="seconds", xlim=(0.5, 0.5 + max(points[-1][0] for _, _, points in shown)))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylim(bottom=0)
    return _finished(axes, len(shown))


def singular_values(runs: Sequence[RunFacts], theme: Theme) -> Any | None:
    """Smallest and largest singular value of each layer small enough to have them computed."""
    rows = [
        (number, f"{layer['name']}  {layer['type']}", layer["smallest_singular_value"], layer["largest_singular_value"])
        for number, facts in enumerate(runs)
        for layer in (facts.audit or {}).get("layers", ())
        if "smallest_singular_value" in layer
    ]
    if not rows:
        return None
    axes = new_axes(0.9 + 0.22 * len(rows))
    axes.axvline(1, color=theme.muted, linewidth=1)
    places = np.arange(len(rows))[::-1]
    for place, (number, _, smallest, largest) in zip(places, rows, strict=True):
        axes.plot([smallest, largest], [place, place], "-", color=theme.colour(number), linewidth=3, alpha=0.5)
        axes.plot([smallest, largest], [place, place], "o", color=theme.colour(number), markersize=4)
        text = _about_one(smallest, largest)
        axes.annotate(text, (largest, place), (6, 0), textcoords="offset points", va="center", fontsize=7.5)
    axes.set_yticks(places, [plain(label) for _, label, _, _ in rows])
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.set(xlim=(0, 1.45 * max(1.0, *(largest for *_, largest in rows))), xlabel="singular values")
    axes.grid(axis="y", visible=False)
    return axes.figure


def confusion(runs: Sequence[RunFacts], theme: Theme) -> Any | None:
    """Predictions against labels of the first run, for papers; the page has a table."""
    if runs[0].certificates is None:
        return None
    matrix = confusion_matrix(runs[0])
    size = max(3.2, 0.3 * len(matrix) + 1.2)
    axes = new_axes(size, size + 0.2)
    axes.grid(visible=False)
    axes.imshow(matrix / np.maximum(matrix.sum(1, keepdims=True), 1), cmap="Blues", vmin=0, vmax=1)
    names = [plain(runs[0].class_name(label)) for label in range(len(matrix))]
    axes.set_xticks(range(len(names)), names, rotation=90)
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="prediction", ylabel="label")
    if len(matrix) <= 20:
        for (row, column), count in np.ndenumerate(matrix):
            light = count > 0.6 * matrix[row].sum()
            axes.text(column, row, str(count), ha="center", va="center", fontsize=7, color="w" if light else theme.ink)
    return axes.figure


#: the figures that go into a page or a paper, by name
FIGURES: Mapping[str, Draw] = {
    "certified-accuracy": certified_accuracy,
    "radius-histogram": radius_histogram,
    "training-loss": training_loss,
    "training-accuracy": training_accuracy,
    "seconds-per-epoch": seconds_per_epoch,
    "singular-values": singular_values,
    "confusion": confusion,
}


def confusion_matrix(facts: RunFacts) -> Any:
    """(classes, classes): number of images of each label with each prediction."""
    assert facts.certificates is not None
    size = len(facts.run.data.classes)
    counts = np.zeros((size, size), np.int64)
    np.add.at(counts, (facts.certificates.label.numpy(), facts.certificates.prediction.numpy()), 1)
    return counts


def largest_radius(runs: Sequence[RunFacts]) -> float:
    """The end of the axis of radii: just beyond the largest finite one."""
    finite = [float(table.radius.nan_to_num(0, 0, 0).max()) for *_, table in _certified(runs) if len(table)]
    return 1.02 * max([*finite, 0.0]) or 1.0


def curve(facts: RunFacts, end: float, points: int = 241) -> tuple[Any, Any]:
    """Radii in equal steps from 0 to the end, and the certified accuracy of a run at each."""
    assert facts.certificates is not None
    radii = np.linspace(0, end, points)
    return radii, np.array(certified_shares(facts.certificates.radius, radii.tolist()))


def attacked_radius(results: Mapping[str, Any]) -> float | None:
    """The l2 radius at which all images were attacked, if there was one."""
    attack = results.get("attack", {})
    return attack.get("epsilon") if attack.get("norm") == "l2" else None


def _certified(runs: Sequence[RunFacts]) -> list[tuple[int, RunFacts, Certificates]]:
    found = [(number, facts, facts.certificates) for number, facts in enumerate(runs)]
    return [(number, facts, table) for number, facts, table in found if table is not None]


def _lines(
    runs: Sequence[RunFacts], theme: Theme, kinds: Sequence[tuple[str, str, str]], label: str, scale: float = 1
) -> Any | None:
    axes, drawn = new_axes(), 0
    for number, facts in enumerate(runs):
        for ending, style, kind in kinds:
            if points := facts.log.columns.get(ending) or facts.log.ending_with(ending):
                epochs, values = zip(*points, strict=True)
                name = ", ".join(part for part in (facts.name if len(runs) > 1 else "", kind) if part)
                look = {"color": theme.colour(number), "label": plain(name or facts.name), "markersize": 3}
                axes.plot(epochs, scale * np.asarray(values), style + ("o" if len(points) < 3 else ""), **look)
                drawn += 1
    axes.set(xlabel="epoch", ylabel=label)
    axes.set_xlim(left=0)
    if scale == 100:
        axes.set_ylim(0, 100)
    return _finished(axes, drawn) if drawn else None


def _finished(axes: Any, count: int) -> Any:
    if count > 1:
        axes.legend(loc="best")
    return axes.figure


def _about_one(smallest: float, largest: float) -> str:
    """Two singular values in few characters; how far from 1 where they are near it."""
    if abs(smallest - 1) < 1e-3 and abs(largest - 1) < 1e-3:
        return f"1 ± {max(abs(smallest - 1), abs(largest - 1)):.0e}"
    return f"{smallest:.4g}" if f"{smallest:.4g}" == f"{largest:.4g}" else f"{smallest:.4g} to {largest:.4g}"
