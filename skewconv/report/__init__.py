"""Reports of runs: one HTML page that needs nothing else, and figures and tables for papers."""

from skewconv.report.collect import RunFacts, collect, write_tables
from skewconv.report.figures import write_figures
from skewconv.report.page import render_page

__all__ = ["RunFacts", "collect", "render_page", "write_figures", "write_tables"]
