"""The table of engines, ways to apply the same polynomial of J that are equal up to rounding, and which of them runs.

The choice is a pure function of shapes. Each engine states in ``advantage`` where it is the best choice: a rule or two,
found in the timings of ``benchmarks/records/plan.json`` and ``plan-random.json`` (processors, float32) and checked by
``benchmarks/bench_plan.py``. The first engine with an advantage is taken, else convolutions.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch

from skewconv.checks import IntOrTuple
from skewconv.choices import PaddingMode
from skewconv.errors import ArgumentError, ShapeError
from skewconv.ops.convolution import Geometry
from skewconv.ops.engines import HALF_PRECISION, Engine, Request
from skewconv.ops.engines.dense_engine import DENSE_ENGINE
from skewconv.ops.engines.series_engine import SERIES_ENGINE
from skewconv.ops.engines.spectral_engine import SPECTRAL_ENGINE
from skewconv.ops.engines.winograd_engine import WINOGRAD_ENGINE
from skewconv.ops.polynomials import Polynomial, recurrence_of
from skewconv.ops.recurrence import ChannelWidths, Recurrence
from skewconv.ops.torch_modes import tracing

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


class EnginePlan(NamedTuple):
    """The engine chosen, and why."""

    engine: str
    reason: str

    def __str__(self) -> str:
        return f"engine {self.engine}: {self.reason}"


def plan(
    image_shape: Sequence[int],
    filter_shape: Sequence[int],
    *,
    degree: int,
    out_channels: int | None = None,
    padding_mode: PaddingMode = "zeros",
    dilation: IntOrTuple = 1,
    groups: int = 1,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    truncation_error: float = 0.0,
) -> EnginePlan:
    """Which engine ``conv_exp(..., engine="auto")`` takes, and why.

    >>> print(plan((128, 1024, 2, 2), (1024, 1024, 3, 3), degree=3))
    engine dense: 44% of the products of taps with pixels lie inside the image
    >>> print(plan((128, 64, 16, 16), (64, 64, 3, 3), degree=3).engine)
    series
    >>> print(plan((128, 64, 16, 16), (64, 64, 3, 3), degree=3, padding_mode="circular").engine)
    spectral

    Args:
        image_shape: (batch, c, *size) with c <= m channels.
        filter_shape: (m, m / groups, *kernel).
        degree: number of products with J.
        out_channels: how many channels are kept; all m by default.
        truncation_error: of the polynomial: from 1e-5 on, an engine that rounds less well than others may be taken.
    """
    axes = len(filter_shape) - 2
    if not 1 <= axes <= 3 or len(image_shape) != axes + 2 or filter_shape[0] != groups * filter_shape[1]:
        raise ShapeError(
            "image_shape must be (batch, c, *size) and filter_shape (m, m / groups, *kernel), with 1 to 3 axes both; "
            f"got {tuple(image_shape)} and {tuple(filter_shape)} with groups={groups}"
        )
    geometry = Geometry.of(tuple(filter_shape[2:]), padding_mode, dilation, groups)
    channels, inputs = filter_shape[1], image_shape[1] // groups
    outputs = channels if out_channels is None else out_channels // groups
    # A complex channel is two real ones.
    parts = 2 if dtype.is_complex else 1
    widths = ChannelWidths(groups, parts * channels, parts * inputs, parts * outputs)
    size, real = tuple(image_shape[2:]), dtype.to_real() if dtype.is_complex else dtype
    geometry = geometry.on_image(size)
    return _plan_for(Request(image_shape[0], size, geometry, widths, degree, real, device, truncation_error))


def _plan_for(request: Request) -> EnginePlan:
    if request.device != "cpu":
        return EnginePlan(EVERY_REQUEST.name, f"nothing was measured on {request.device!r}")
    if request.dtype in HALF_PRECISION:
        half = str(request.dtype).removeprefix("torch.")
        return EnginePlan(EVERY_REQUEST.name, f"convolutions run in {half}, the other engines in float32")
    for engine in ENGINES.values():
        if not engine.refusal(request.geometry, request.size) and (reason := engine.advantage(request)):
            return EnginePlan(engine.name, reason)
    return EnginePlan(EVERY_REQUEST.name, "convolutions, as no other engine has an advantage")


def new_recipe(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: str,
    geometry: Geometry,
    widths: ChannelWidths,
    p: Polynomial,
    engine: str,
    *,
    inverse: bool,
    recompute: bool,
) -> tuple[Engine, torch.dtype, Request, Recurrence]:
    """What depends on shapes alone: the engine, the dtype it computes in, the request and the recurrence to run.

    The images (batch, c, *size) are real; the geometry has all taps of the filter.
    """
    size = shape[2:]
    geometry = geometry.on_image(size)
    check_engine(engine, geometry, size)
    request = Request(shape[0], size, geometry, widths, p.degree, dtype, device, p.truncation_error)
    name = engine
    if engine == AUTO:
        # A plan would tie a compiled program to one batch size.
        name = EVERY_REQUEST.name if tracing() else _plan_for(request).engine
    # A compiler has its own ways to save memory.
    steps = recurrence_of(p, inverse=inverse, reversible=recompute and not torch.compiler.is_compiling())
    working = ENGINES[name].working_dtype(dtype, device)
    # The highest power of the filter may not overflow: compared as logarithms, which do not.
    overflows = len(p.coefficients) * math.log(max(p.norm_bound, 1.0)) >= math.log(torch.finfo(working).max)
    return ENGINES[name], torch.float64 if overflows else working, request, steps


kept_recipe = lru_cache(maxsize=4096)(new_recipe)
