"""The figures of a report, each a function from runs to a drawing; all runs share its axes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from skewconv.certify import THRESHOLDS
from skewconv.choices import radius_name
from skewconv.report.collect import RunFacts
from skewconv.report.theme import Theme, new_figure, plain

Draw = Callable[[Sequence[RunFacts], Theme], Any | None]


def certified_accuracy(runs: Sequence[RunFacts], theme: Theme) -> Any | None:
    """The share of the test images that is right and certified, against the radius; attacks as crosses."""
    shown = [(number, facts) for number, facts in enumerate(runs) if facts.certificates is not None]
    if not shown:
        return None
    figure = new_figure(3.0)
    axes = figure.add_subplot()
    end = largest_radius(runs)
    for number, facts in shown:
        radii, shares = curve(facts, end)
        axes.plot(radii, 100 * shares, color=theme.colour(number), label=plain(facts.name))
        for attack in facts.attacks:
            at, share = attacked_radius(attack), attack.get("attacked")
            if at is not None and at <= end and share is not None:
                axes.plot([at], [100 * share], "x", color=theme.colour(number), markersize=6)
    for place, radius in enumerate(each for each in THRESHOLDS if each < end):
        axes.axvline(radius, color=theme.muted, linewidth=0.7, linestyle=(0, (2, 3)))
        # Neighbours stand on two lines, since they may be near each other.
        axes.text(radius, 101 + 5 * (place % 2), radius_name(radius), color=theme.muted, fontsize=7.5, ha="center")
    axes.set(xlim=(0, end), ylim=(0, 100), xlabel="l2 radius, pixels in [0, 1]", ylabel="certified accuracy, %")
    return _finished(figure, axes, len(shown))


def radius_histogram(runs: Sequence[RunFacts], theme: Theme) -> Any | None:
    """The share of the test images that has each radius; those with none are left out."""
    tables = [(number, facts.name, facts.certificates) for number, facts in enumerate(runs)]
    shown = [(number, name, table.radius[table.radius > 0]) for number, name, table in tables if table is not None]
    shown = [(number, name, radii[np.isfinite(radii)]) for number, name, radii in shown]
    if not any(len(radii) for _, _, radii in shown):
        return None
    figure = new_figure()
    axes = figure.add_subplot()
    edges = np.linspace(0, largest_radius(runs), 41)
    sizes = {number: len(table) for number, _, table in tables if table is not None}
    for number, name, radii in shown:
        counts, _ = np.histogram(radii, edges)
        shares = 100 * counts / sizes[number]
        axes.stairs(shares, edges, fill=True, color=theme.colour(number), alpha=0.35 if len(shown) > 1 else 0.6)
        axes.stairs(shares, edges, color=theme.colour(number), label=plain(name), linewidth=1.2)
    axes.set(xlim=(0, edges[-1]), xlabel="certified l2 radius", ylabel="share of test images, %")
    return _finished(figure, axes, len(shown))


def training_loss(runs: Sequence[RunFacts], theme: Theme) -> Any | None:
    """Loss on the training batches against the epoch."""
    return _lines(runs, theme, [("loss", "-", "")], "loss on training batches")


def training_accuracy(runs: Sequence[RunFacts], theme: Theme) -> Any | None:
    """Accuracy on training batches, and on the images judged by on the way, against the epoch."""
    kinds = [("accuracy", ":", "training"), ("_clean", "-", "clean"), ("_certified", "--", "certified")]
    return _lines(runs, theme, kinds, "accuracy, %", scale=100)


def seconds_per_epoch(runs: Sequence[RunFacts], theme: Theme) -> Any | None:
    """How long each epoch took."""
    shown = [
        (n, facts.name, facts.log.seconds_per_epoch) for n, facts in enumerate(runs) if facts.log.seconds_per_epoch
    ]
    if not shown:
        return None
    figure = new_figure(2.3)
    axes = figure.add_subplot()
    for number, name, points in shown:
        axes.plot(*zip(*points, strict=True), "o-", color=theme.colour(number), label=plain(name), markersize=3)
    axes.set(xlabel="epoch", ylabel="seconds", xlim=(0.5, 0.5 + max(points[-1][0] for _, _, points in shown)))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylim(bottom=0)
    return _finished(figure, axes, len(shown))


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
    figure = new_figure(0.9 + 0.22 * len(rows))
    axes = figure.add_subplot()
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
    return figure


def confusion(runs: Sequence[RunFacts], theme: Theme) -> Any | None:
    """Predictions against labels of the first run, for paper; the page has it as a table."""
    table = runs[0].certificates
    if table is None:
        return None
    matrix = confusion_matrix(runs[0])
    size = max(3.2, 0.3 * len(matrix) + 1.2)
    figure = new_figure(size, size + 0.2)
    axes = figure.add_subplot()
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
    return figure


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
    """(classes, classes): how many images of each label got each prediction."""
    assert facts.certificates is not None
    size = len(facts.run.data.classes)
    counts = np.zeros((size, size), np.int64)
    np.add.at(counts, (facts.certificates.label, facts.certificates.prediction), 1)
    return counts


def largest_radius(runs: Sequence[RunFacts]) -> float:
    """Where the axis of radii ends: just beyond the largest finite one."""
    tables = [facts.certificates for facts in runs if facts.certificates is not None]
    finite = [float(table.radius[np.isfinite(table.radius)].max(initial=0.0)) for table in tables]
    return 1.02 * max([*finite, 0.0]) or 1.0


def curve(facts: RunFacts, end: float, points: int = 241) -> tuple[Any, Any]:
    """Radii in equal steps from 0 to the end, and the certified accuracy of a run at each."""
    assert facts.certificates is not None
    radii = np.linspace(0, end, points)
    found = np.sort(facts.certificates.radius)
    # What is at least r is what stands right of the first place where r could be put in; zeros are not certified.
    certified = len(found) - np.searchsorted(found, np.maximum(radii, np.nextafter(0, 1)), side="left")
    return radii, certified / max(len(found), 1)


def attacked_radius(results: Mapping[str, Any]) -> float | None:
    """The l2 radius at which all images were attacked, if there was one."""
    attack = results.get("attack", {})
    return attack.get("epsilon") if attack.get("norm") == "l2" else None


def _lines(
    runs: Sequence[RunFacts], theme: Theme, kinds: Sequence[tuple[str, str, str]], label: str, scale: float = 1
) -> Any | None:
    figure = new_figure()
    axes = figure.add_subplot()
    drawn = 0
    for number, facts in enumerate(runs):
        for ending, style, kind in kinds:
            points = facts.log.columns.get(ending) or facts.log.ending_with(ending)
            if points:
                epochs, values = zip(*points, strict=True)
                name = ", ".join(part for part in (facts.name if len(runs) > 1 else "", kind) if part)
                mark = "o" if len(points) < 3 else ""
                axes.plot(
                    epochs,
                    scale * np.asarray(values),
                    style + mark,
                    color=theme.colour(number),
                    label=plain(name or facts.name),
                    markersize=3,
                )
                drawn += 1
    axes.set(xlabel="epoch", ylabel=label)
    axes.set_xlim(left=0)
    if scale == 100:
        axes.set_ylim(0, 100)
    return _finished(figure, axes, drawn) if drawn else None


def _finished(figure: Any, axes: Any, count: int) -> Any:
    if count > 1:
        axes.legend(loc="best")
    return figure


def _about_one(smallest: float, largest: float) -> str:
    """Two singular values in few characters; how far from 1 where they are near it."""
    if abs(smallest - 1) < 1e-3 and abs(largest - 1) < 1e-3:
        return f"1 ± {max(abs(smallest - 1), abs(largest - 1)):.0e}"
    return f"{smallest:.4g}" if f"{smallest:.4g}" == f"{largest:.4g}" else f"{smallest:.4g} to {largest:.4g}"
