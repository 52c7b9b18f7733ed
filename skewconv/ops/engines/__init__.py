"""Three ways to apply the same polynomial of J, equal up to rounding; :mod:`skewconv.ops.plan` chooses."""

from collections.abc import Callable
from typing import Literal, TypeAlias

from torch import Tensor

from skewconv.ops.engines import dense, series, spectral

Engine: TypeAlias = Literal["auto", "series", "dense", "spectral"]

ENGINES: dict[str, Callable[..., Tensor]] = {
    "series": series.apply,
    "dense": dense.apply,
    "spectral": spectral.apply,
}
