"""The series that stand for exp on the imaginary axis: a file for each, and a line in the table below."""

from skewconv.errors import ArgumentError
from skewconv.ops.series.abstract_series import Series as Series
from skewconv.ops.series.abstract_series import UnitBasis as UnitBasis
from skewconv.ops.series.chebyshev import CHEBYSHEV as CHEBYSHEV
from skewconv.ops.series.isometric import ISOMETRIC as ISOMETRIC
from skewconv.ops.series.taylor import TAYLOR

SERIES: dict[str, Series] = {series.name: series for series in (TAYLOR, CHEBYSHEV, ISOMETRIC)}

# In evaluation, the one that needs the fewest convolutions for an error; in training, the one that keeps the gradient.
DEFAULT_SERIES = CHEBYSHEV.name
TRAINING_SERIES = ISOMETRIC.name


def series_named(name: str) -> Series:
    if not isinstance(name, str) or name not in SERIES:
        names = ", ".join(f'"{known}"' for known in SERIES)
        raise ArgumentError(f"series must be one of {names}, got {name!r}")
    return SERIES[name]
