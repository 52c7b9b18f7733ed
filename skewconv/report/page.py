"""The page: everything of some runs in one HTML file that asks for nothing else."""

import base64
import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skewconv._version import __version__
from skewconv.certify.predict import rounded_down
from skewconv.extras import optional
from skewconv.records import radius_name
from skewconv.report.collect import RunFacts, compare_configs, compare_metrics, headline, provenance, settings
from skewconv.report.figures import FIGURES, attacked_radius, curve, figure_svg, largest_radius

_TEMPLATES = Path(__file__).parent / "templates"
_LARGEST_TABLE = 20


def render_page(runs: Sequence[RunFacts]) -> str:
    """The HTML of a report. Names of classes, runs and files are escaped, and no other script can run in it."""
    jinja = optional("jinja2", "Jinja2", "report")
    loader, blocks = jinja.FileSystemLoader(_TEMPLATES), {"trim_blocks": True, "lstrip_blocks": True}
    environment = jinja.Environment(loader=loader, autoescape=True, undefined=jinja.StrictUndefined, **blocks)
    environment.filters |= {"share": "{:.2%}".format, "short": "{:.6g}".format, "radius": rounded_down}
    safe = optional("markupsafe", "MarkupSafe", "report").Markup
    style, script = ((_TEMPLATES / f"report.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    drawn = {name: figure_svg(name, runs) for name in FIGURES}
    return str(
        environment.get_template("report.html").render(
            title=", ".join(facts.name for facts in runs),
            version=__version__,
            style=safe(style),
            script=safe(script),
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            figures={name: safe(svg) for name, svg in drawn.items() if svg is not None},
            runs=[_run(facts, number) for number, facts in enumerate(runs)],
            compared=compare_metrics(runs) if len(runs) > 1 else [],
            configs=[row for row in compare_configs(runs) if row.differs] if len(runs) > 1 else [],
            curves=_curves(runs),
        )
    )


def _curves(runs: Sequence[RunFacts]) -> dict[str, Any]:
    """The data of the cursor: certified accuracy of each run in equal steps of the radius."""
    end = largest_radius(runs)
    shown = [(n, facts, curve(facts, end)[1]) for n, facts in enumerate(runs) if facts.certificates is not None]
    return {
        "end": end,
        "runs": [{"name": facts.name, "series": n % 6 + 1, "shares": np.round(s, 5).tolist()} for n, facts, s in shown],
    }


def _run(facts: RunFacts, number: int) -> dict[str, Any]:
    """The variables of the template for one run."""
    return {
        **vars(facts),
        "series": number % 6 + 1,
        "headline": headline(facts),
        "galleries": galleries(facts),
        "confusion": _confusion(facts),
        "attacks": [_attack(results) for results in facts.attacks],
        "settings": settings(facts),
        "provenance": provenance(facts),
    }


def _confusion(facts: RunFacts) -> dict[str, Any] | None:
    """The whole matrix for few classes; the most frequent confusions for many."""
    if (table := facts.certificates) is None:
        return None
    names = facts.run.data.classes
    size = len(names)
    counts = (table.label * size + table.prediction).bincount(minlength=size**2).view(size, size).numpy()
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    rows = [list(zip(*row, strict=True)) for row in zip(counts.tolist(), shares.tolist(), strict=True)]
    wrong = counts * (1 - np.eye(len(counts), dtype=np.int64))
    order = np.argsort(-wrong, axis=None, kind="stable")[:10]
    pairs = [divmod(int(place), len(counts)) for place in order]
    return {
        "names": names,
        "rows": rows if len(counts) <= _LARGEST_TABLE else [],
        "often": [(names[row], names[column], int(wrong[row, column])) for row, column in pairs if wrong[row, column]],
    }


def _attack(results: dict[str, Any]) -> dict[str, Any]:
    attack = {"kind": "attack", "norm": "l2", "epsilon": None, "fraction": 0.99, **results.get("attack", {})}
    certified, at = next(iter(results.get("certified", {}).values()), None), attack["epsilon"]
    return {
        **attack,
        "ball": f"{attack['fraction']:g} of its own radius" if at is None else f"at {radius_name(at)}",
        "images": results.get("images", 0),
        "clean": results.get("clean"),
        "robust": results.get("attacked"),
        "certified": certified if attacked_radius(results) is not None else None,
        "broken": len(results.get("violations", ())),
    }


_READINGS = (
    ("Largest certified radii", "The most robust predictions: no change shorter than the radius alters these."),
    ("Smallest certified radii", "Right and certified, but hardly: a small change may be enough."),
    ("Wrong", "The most confident mistakes: here the label's logit is furthest below the prediction's."),
)


def galleries(facts: RunFacts, count: int = 12) -> list[dict[str, Any]]:
    """Rows of test images with captions; none without certificates, or if the images are missing or others."""
    table, data = facts.certificates, facts.data
    if table is None or data is None:
        return []
    index, label, prediction = (column.numpy() for column in (table.index, table.label, table.prediction))
    if (index >= len(data.test)).any() or not np.array_equal(data.test.labels[index], label):
        return []
    radius, margin, right, names = table.radius.numpy(), table.margin.numpy(), prediction == label, data.classes

    def shown(row: int) -> dict[str, Any]:
        return {
            "index": int(index[row]),
            "picture": data_uri(data.test.images[index[row]]),
            "label": names[label[row]],
            "prediction": names[prediction[row]],
            "right": bool(right[row]),
            "margin": float(margin[row]),
            "radius": float(radius[row]),
        }

    chosen = (-radius, radius > 0), (radius, radius > 0), (margin, ~right)
    found = []
    for (title, reading), (order, mask) in zip(_READINGS, chosen, strict=True):
        rows = np.flatnonzero(mask)
        first = rows[np.argsort(order[rows], kind="stable")][:count]
        found.append({"title": title, "reading": reading, "images": [shown(int(row)) for row in first]})
    return found


def data_uri(pixels: NDArray[Any]) -> str:
    """A data URI with the PNG of pixels (1 or 3, H, W), uint8."""
    array = pixels[0] if pixels.shape[0] == 1 else np.moveaxis(pixels[:3], 0, 2)
    file = io.BytesIO()
    optional("PIL.Image", "Pillow").fromarray(np.ascontiguousarray(array)).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def stretched(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Signed values as pixels: 0 is the middle grey, the largest absolute value is black or white."""
    peak = float(np.abs(values).max(initial=0.0))
    return np.rint(127.5 + 127.5 * np.clip(values / (peak or 1.0), -1, 1)).astype(np.uint8)
