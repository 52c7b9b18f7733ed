"""The engines: ways to apply the same polynomial of J, equal up to rounding. One file each, one line in the table."""

from skewconv.errors import ArgumentError
from skewconv.ops.convolution import Geometry
from skewconv.ops.engines.abstract_engine import Engine
from skewconv.ops.engines.dense_engine import DENSE_ENGINE
from skewconv.ops.engines.series_engine import SERIES_ENGINE
from skewconv.ops.engines.spectral_engine import SPECTRAL_ENGINE
from skewconv.ops.engines.winograd_engine import WINOGRAD_ENGINE

__all__ = ["AUTO", "ENGINES", "EVERY_REQUEST", "Engine", "check_engine"]

# A plan takes the first that has an advantage.
ENGINES: dict[str, Engine] = {
    engine.name: engine for engine in (SERIES_ENGINE, WINOGRAD_ENGINE, DENSE_ENGINE, SPECTRAL_ENGINE)
}

# The one that refuses nothing, and that a compiler sees: a plan would tie the compiled program to one batch size.
EVERY_REQUEST = SERIES_ENGINE

# Not an engine: the plan's choice.
AUTO = "auto"


def check_engine(name: str, geometry: Geometry, size: tuple[int, ...] | None = None) -> None:
    """Refuse an engine that does not exist or cannot serve images of this size (None: not known yet)."""
    if name == AUTO:
        return
    if not isinstance(name, str) or name not in ENGINES:
        raise ArgumentError(f"engine must be one of {', '.join(map(repr, (AUTO, *ENGINES)))}, got {name!r}")
    if refusal := ENGINES[name].refusal(geometry, size):
        raise ArgumentError(f"engine={name!r} cannot serve this request: {refusal}; use engine={AUTO!r}")
