"""The paper's tables, run again: rows, the scale they are run at, their runs and records, and the tables of these."""

from skewconv.reproduce.job import Job
from skewconv.reproduce.rows import EXPERIMENTS, Row
from skewconv.reproduce.study import Study
from skewconv.reproduce.table import table_of

__all__ = ["EXPERIMENTS", "Job", "Row", "Study", "table_of"]
