"""The figures of a report: each a function from runs to a drawing, for a page or as files for papers."""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from skewconv.certify import THRESHOLDS
from skewconv.certify import certified_accuracy as certified_shares
from skewconv.certify.certificates import Certificates
from skewconv.extras import optional
from skewconv.records import atomic_write, radius_name
from skewconv.report.collect import RunFacts

#: text, lines and grid, and Okabe and Ito's colours for colour-blind readers, one for each run
INK, MUTED, GRID = "#010101", "#555555", "#d9d9d9"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9")
# A page has colours of its own, in light and in darkness.
_VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)"} | {
    colour: f"var(--series-{number})" for number, colour in enumerate(SERIES, 1)
}


def drawing() -> Any:
    """A context with matplotlib's settings for the figures."""
    ink = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK)
    muted = dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), MUTED)
    off = dict.fromkeys(("axes.spines.top", "axes.spines.right", "axes.unicode_minus", "legend.frameon"), False)
    clear = dict.fromkeys(("axes.facecolor", "figure.facecolor", "svg.fonttype"), "none")
    sizes = {"font.size": 9, "grid.linewidth": 0.6, "legend.fontsize": 8.5, "lines.linewidth": 1.6}
    grid = {"axes.grid": True, "axes.axisbelow": True, "grid.color": GRID}
    matplotlib = optional("matplotlib", "matplotlib", "report")
    text = {"font.family": "DejaVu Sans", "svg.hashsalt": "", "axes.prop_cycle": matplotlib.cycler(color=SERIES)}
    return matplotlib.rc_context({**text, **ink, **muted, **off, **clear, **sizes, **grid})


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


def figure_svg(name: str, runs: Sequence[RunFacts]) -> str | None:
    """A figure as an svg element for a page: no size, colours from the style sheet, ids that begin with its name.

    Its data-box is the place of the axes: left, top, width, height.
    """
    with drawing():
        if (figure := FIGURES[name](runs)) is None:
            return None
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(text := io.StringIO(), format="svg", metadata=nothing, transparent=True)
        left, bottom, width, height = figure.axes[0].get_position().bounds
    svg = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", text.getvalue(), flags=re.DOTALL)
    for before, after in (('id="', '"'), ('href="#', '"'), (r"url\(#", r"\)")):
        svg = re.sub(rf"(\b{before})([^{after}]+{after})", rf"\1{name}-\2", svg)
    for each, variable in _VARIABLES.items():
        svg = svg.replace(each, variable)
    svg = re.sub(r"font: ([^;\"]*?)'DejaVu Sans'[^;\"]*", r"font: \1var(--font)", svg)
    head = re.search(r'<svg[^>]*(viewBox="[^"]+")[^>]*>', svg)
    assert head is not None
    box = f"{left:.5f} {1 - bottom - height:.5f} {width:.5f} {height:.5f}"
    words = f'class="figure" id="figure-{name}" role="img" data-box="{box}" aria-label="{name.replace("-", " ")}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {head[1]} {words}>{svg[head.end() :]}'


def write_figures(runs: Sequence[RunFacts], folder: Path) -> list[Path]:
    """Each figure as NAME.png (300 dots an inch), on white; the paths."""
    written = []
    with drawing():
        for name, draw in FIGURES.items():
            if (figure := draw(runs)) is not None:
                figure.savefig(file := io.BytesIO(), format="png", dpi=300, facecolor="white")
                atomic_write(path := folder / f"{name}.png", file.getvalue())
                written.append(path)
    return written


def certified_accuracy(runs: Sequence[RunFacts]) -> Any | None:
    """The share of the test images that is right and certified, against the radius; attacks as crosses."""
    shown, axes, end = _certified(runs), new_axes(3.0), largest_radius(runs)
    for number, facts, table in shown:
        radii, shares = curve(facts, end)
        axes.plot(radii, 100 * shares, color=f"C{number}", label=plain(facts.name))
        for attack in facts.attacks:
            # On other images than the certified ones, a cross might lie below the curve.
            at, share = attacked_radius(attack), attack.get("attacked")
            if at is not None and at <= end and share is not None and attack.get("images") == len(table):
                axes.plot([at], [100 * share], "x", color=f"C{number}", markersize=6)
    for place, radius in enumerate(each for each in THRESHOLDS if each < end):
        axes.axvline(radius, color=MUTED, linewidth=0.7, linestyle=(0, (2, 3)))
        # On two lines in turn, since radii may be near each other.
        axes.text(radius, 101 + 5 * (place % 2), radius_name(radius), color=MUTED, fontsize=7.5, ha="center")
    axes.set(xlim=(0, end), ylim=(0, 100), xlabel="l2 radius, pixels in [0, 1]", ylabel="certified accuracy, %")
    return _finished(axes, len(shown))


def radius_histogram(runs: Sequence[RunFacts]) -> Any | None:
    """The share of the test images that has each radius; those with none are left out."""
    shown, edges = _certified(runs), np.linspace(0, largest_radius(runs), 41)
    axes, drawn = new_axes(), 0
    for number, facts, table in shown:
        radii = table.radius[(table.radius > 0) & table.radius.isfinite()].numpy()
        look = {"color": f"C{number}", "alpha": 0.35 if len(shown) > 1 else 0.6, "label": plain(facts.name)}
        axes.hist(radii, edges, weights=np.full(len(radii), 100 / len(table)), histtype="stepfilled", **look)
        drawn += bool(len(radii))
    axes.set(xlim=(0, edges[-1]), xlabel="certified l2 radius", ylabel="share of test images, %")
    return _finished(axes, drawn)


def training(
    runs: Sequence[RunFacts],
    kinds: Sequence[tuple[str, str, str]],
    label: str,
    scale: float = 1,
    ylim: tuple[float | None, float | None] = (None, None),
) -> Any | None:
    """Curves of the logs, each by the end of its column's name, its style and its kind in words."""
    axes, drawn = new_axes(), 0
    for number, facts in enumerate(runs):
        for ending, style, kind in kinds:
            if points := next((points for name, points in facts.log.items() if name.endswith(ending)), []):
                epochs, values = zip(*points, strict=True)
                name = ", ".join(part for part in (facts.name if len(runs) > 1 else "", kind) if part)
                look = {"color": f"C{number}", "label": plain(name or facts.name), "markersize": 3}
                alone = "o" if len(points) < 3 else ""
                axes.plot(epochs, scale * np.asarray(values), style + alone, **look)
                drawn += 1
    axes.set(xlabel="epoch", ylabel=label, xlim=(0, None), ylim=ylim)
    return _finished(axes, drawn)


#: the figures that go into a page or a paper, by name
FIGURES: Mapping[str, Callable[[Sequence[RunFacts]], Any | None]] = {
    "certified-accuracy": certified_accuracy,
    "radius-histogram": radius_histogram,
    "training-loss": partial(training, kinds=[("loss", "-", "")], label="loss on training batches"),
    "training-accuracy": partial(
        training,
        kinds=[("accuracy", ":", "training"), ("_clean", "-", "clean"), ("_certified", "--", "certified")],
        label="accuracy, %",
        scale=100,
        ylim=(0, 100),
    ),
}


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
    return [(number, facts, table) for number, facts in enumerate(runs) if (table := facts.certificates) is not None]


def _finished(axes: Any, count: int) -> Any | None:
    """The figure with a legend where there are several curves; None if there is none."""
    if count > 1:
        axes.legend(loc="best")
    return axes.figure if count else None
