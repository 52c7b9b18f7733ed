"""The curve of certified accuracy, drawn as in a report, for the models that are explored."""

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from skewconv.explore.subject import Subject
from skewconv.report.collect import RunFacts
from skewconv.report.figures import certified_accuracy, largest_radius
from skewconv.report.page import figure_svg

# The settings of a drawing are global to matplotlib.
_DRAWING = threading.Lock()


def certified_curve(subjects: Sequence[Subject]) -> dict[str, Any]:
    """The figure as SVG, the radius at which its axis ends, and whether it still lacks a model's certificates."""
    # The figure reads names and certificates alone.
    shown = [SimpleNamespace(name=s.name, certificates=s.certificates, attacks=()) for s in subjects]
    runs = cast("list[RunFacts]", shown)
    awaited = [s.name for s in subjects if s.certificates is None and s.certifier is not None and s.data is not None]
    with _DRAWING:
        svg = figure_svg("certified-accuracy", certified_accuracy, runs)
    return {"svg": svg, "end": largest_radius(runs), "awaited": awaited}
