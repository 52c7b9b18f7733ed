"""The page: everything of some runs in one HTML file that asks for nothing else."""

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from skewconv._version import __version__
from skewconv.certify.predict import rounded_down
from skewconv.choices import radius_name
from skewconv.extras import optional
from skewconv.report.collect import RunFacts
from skewconv.report.figures import FIGURES, Draw, attacked_radius, confusion_matrix, curve, largest_radius
from skewconv.report.filters import first_filters
from skewconv.report.gallery import galleries
from skewconv.report.summary import compare_configs, compare_figures, headline, provenance, settings
from skewconv.report.theme import PAGE, inline_svg
from skewconv.report.theme import settings as drawing

_TEMPLATES = Path(__file__).parent / "templates"
_LARGEST_TABLE = 20
#: figures of which the page makes something else
_NOT_INLINE = frozenset({"confusion"})


def render_page(runs: Sequence[RunFacts]) -> str:
    """The HTML of a report. Names of classes, runs and files are escaped, and no other script can run in it."""
    jinja = optional("jinja2", "Jinja2", "report")
    environment = jinja.Environment(
        loader=jinja.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"share": "{:.2%}".format, "short": "{:.6g}".format, "radius": rounded_down}
    safe = optional("markupsafe", "MarkupSafe", "report").Markup
    script = (_TEMPLATES / "report.js").read_text(encoding="utf-8")
    figures = _figures(runs)
    return str(
        environment.get_template("report.html").render(
            title=", ".join(facts.name for facts in runs),
            version=__version__,
            style=safe((_TEMPLATES / "report.css").read_text(encoding="utf-8")),
            script=safe(script),
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            figures={name: safe(svg) for name, svg in figures.items()},
            runs=[_run(facts, number) for number, facts in enumerate(runs)],
            compared=compare_figures(runs) if len(runs) > 1 else [],
            configs=[row for row in compare_configs(runs) if row.differs] if len(runs) > 1 else [],
            curves=_curves(runs),
        )
    )


def figure_svg(name: str, draw: Draw, runs: Sequence[RunFacts]) -> str | None:
    """A figure as an svg element for a page; its data-box is the place of the axes: left, top, width, height."""
    with optional("matplotlib", "matplotlib", "report").rc_context(drawing(PAGE)):
        if (figure := draw(runs, PAGE)) is None:
            return None
        figure.draw_without_rendering()
        left, bottom, width, height = figure.axes[0].get_position().bounds
        box = f"{left:.5f} {1 - bottom - height:.5f} {width:.5f} {height:.5f}"
        words = {"class": "figure", "id": f"figure-{name}", "role": "img", "data-box": box}
        return inline_svg(figure, name, words | {"aria-label": name.replace("-", " ")})


def _figures(runs: Sequence[RunFacts]) -> dict[str, str]:
    drawn = {name: figure_svg(name, draw, runs) for name, draw in FIGURES.items() if name not in _NOT_INLINE}
    return {name: svg for name, svg in drawn.items() if svg is not None}


def _curves(runs: Sequence[RunFacts]) -> dict[str, Any]:
    """What the cursor reads: certified accuracy of each run in equal steps of the radius."""
    end = largest_radius(runs)
    shown = [(n, facts, curve(facts, end)[1]) for n, facts in enumerate(runs) if facts.certificates is not None]
    return {
        "end": end,
        "runs": [{"name": facts.name, "series": n % 6 + 1, "shares": np.round(s, 5).tolist()} for n, facts, s in shown],
    }


def _run(facts: RunFacts, number: int) -> dict[str, Any]:
    """What the template shows of one run."""
    return {
        "name": facts.name,
        "series": number % 6 + 1,
        "origin": "" if facts.certificates is None else facts.certificates.origin,
        "headline": headline(facts),
        "galleries": galleries(facts),
        "without_images": str(facts.dataset) if isinstance(facts.dataset, Exception) else "",
        "confusion": _confusion(facts),
        "audit": facts.audit,
        "filters": first_filters(facts.run.model, facts.run.input_shape),
        "attacks": [_attack(results) for results in facts.attacks],
        "settings": settings(facts),
        "provenance": provenance(facts),
        "missing": facts.missing,
    }


def _confusion(facts: RunFacts) -> dict[str, Any] | None:
    """The whole matrix for few classes; the most frequent confusions for many."""
    if facts.certificates is None:
        return None
    counts = confusion_matrix(facts)
    names = [facts.class_name(label) for label in range(len(counts))]
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    wrong = counts * (1 - np.eye(len(counts), dtype=np.int64))
    order = np.argsort(-wrong, axis=None, kind="stable")[:10]
    pairs = [divmod(int(place), len(counts)) for place in order]
    return {
        "names": names,
        "rows": [list(zip(*row, strict=True)) for row in zip(counts.tolist(), shares.tolist(), strict=True)]
        if len(counts) <= _LARGEST_TABLE
        else [],
        "often": [(names[row], names[column], int(wrong[row, column])) for row, column in pairs if wrong[row, column]],
    }


def _attack(results: dict[str, Any]) -> dict[str, Any]:
    attack = results.get("attack", {})
    certified = next(iter(results.get("certified", {}).values()), None)
    at = attack.get("epsilon")
    ball = f"{attack.get('fraction', 0.99):g} of its own radius" if at is None else f"at {radius_name(at)}"
    return {
        "kind": attack.get("kind", "attack"),
        "norm": attack.get("norm", "l2"),
        "ball": ball,
        "images": results.get("images", 0),
        "clean": results.get("clean"),
        "robust": results.get("attacked"),
        "certified": certified if attacked_radius(results) is not None else None,
        "broken": len(results.get("violations", ())),
    }
