"""Colours and sizes of figures: for the page, where style sheets choose the colours, and for paper."""

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from skewconv.extras import optional


@dataclass(frozen=True)
class Theme:
    """The colours of a figure: of text, lines that recede, and the runs one after the other."""

    ink: str
    muted: str
    grid: str
    series: tuple[str, ...]

    def colour(self, number: int) -> str:
        """The colour of a run."""
        return self.series[number % len(self.series)]


#: stand-ins that no figure uses otherwise; :func:`inline_svg` puts variables of the style sheet in their place
PAGE = Theme("#0a0b01", "#0a0b02", "#0a0b03", tuple(f"#0a0c0{number}" for number in range(1, 7)))
#: Okabe and Ito's colours, which people who do not tell red from green tell apart, on white
PAPER = Theme("#000000", "#555555", "#d9d9d9", ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9"))
_VARIABLES = {PAGE.ink: "var(--ink)", PAGE.muted: "var(--muted)", PAGE.grid: "var(--grid)"} | {
    colour: f"var(--series-{number})" for number, colour in enumerate(PAGE.series, 1)
}


def settings(theme: Theme) -> dict[str, Any]:
    """Matplotlib's settings for a figure in a theme."""
    return {
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "text.color": theme.ink,
        "axes.labelcolor": theme.ink,
        "axes.edgecolor": theme.muted,
        "axes.facecolor": "none",
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.unicode_minus": False,
        "figure.facecolor": "none",
        "grid.color": theme.grid,
        "grid.linewidth": 0.6,
        "xtick.color": theme.muted,
        "ytick.color": theme.muted,
        "xtick.labelcolor": theme.ink,
        "ytick.labelcolor": theme.ink,
        "legend.frameon": False,
        "legend.fontsize": 8.5,
        "lines.linewidth": 1.6,
        "svg.fonttype": "none",
    }


def new_figure(height: float = 2.7, width: float = 4.6) -> Any:
    """An empty figure, in inches, that leaves room for its own labels."""
    return optional("matplotlib.figure", "matplotlib", "report").Figure((width, height), layout="constrained")


def plain(text: str) -> str:
    r"""Text that matplotlib draws as it is: no formulas between dollars, no label left out for its underscore.

    >>> plain("a$b$"), plain("_run") == "_run"
    ('a\\$b\\$', False)
    """
    escaped = text.replace("$", r"\$")
    return "\u200b" + escaped if escaped.startswith("_") else escaped


def inline_svg(figure: Any, name: str, attributes: Mapping[str, str]) -> str:
    """The figure as an svg element for a page: no size of its own, colours from the style sheet, names of its own.

    Args:
        figure: drawn in the theme PAGE.
        name: a plain word; it begins every id, since ids are unique in a page.
        attributes: of the element; their values are plain text.
    """
    text = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with optional("matplotlib", "matplotlib", "report").rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata=nothing, transparent=True)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, variable)
    svg = re.sub(r"font: ([^;\"]*?)'DejaVu Sans'[^;\"]*", r"font: \1var(--font)", svg)
    box = re.search(r'viewBox="[^"]+"', svg)
    assert box is not None
    words = " ".join(f'{key}="{_attribute(value)}"' for key, value in attributes.items())
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box[0]} {words}>{svg[svg.index(">") + 1 :]}'


def _attribute(value: str) -> str:
    return value.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
