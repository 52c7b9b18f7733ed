"""Reports of runs: one HTML page that needs nothing else, and figures for papers."""

from skewconv.report.collect import RunFacts, collect
from skewconv.report.figures import write_figures
from skewconv.report.page import render_page

__all__ = ["RunFacts", "collect", "render_page", "write_figures"]
