"""Which engine runs, and why: a pure function of shapes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from skewconv.checks import IntOrTuple
from skewconv.choices import PaddingMode
from skewconv.errors import ShapeError
from skewconv.ops.convolution import Geometry
from skewconv.ops.engines import AUTO, ENGINES, EVERY_REQUEST, Engine, check_engine
from skewconv.ops.engines.application import Application, recurrence_of
from skewconv.ops.engines.channels import ChannelWidths
from skewconv.ops.engines.costs import Request, seconds
from skewconv.ops.polynomials import Polynomial
from skewconv.ops.torch_modes import tracing


@dataclass(frozen=True)
class Candidate:
    """What one engine would do.

    Args:
        engine: its name.
        form: what its products are: convolutions (uneven ones fill up channels to a multiple of 16; one image takes a
            simpler path), columns of pixels times the filter, one matrix, blocks of one, or a matrix for each
            frequency (after an fft where images are large).
        forward: multiply-adds of an evaluation.
        training: multiply-adds of a training step: forward, adjoint, and gradient of the filter.
        seconds: the estimated time of what was asked for; only good for comparison.
        refusal: why the engine does not serve the request, or empty.
    """

    engine: str
    form: str
    forward: int
    training: int
    seconds: float
    refusal: str = ""


@dataclass(frozen=True)
class EnginePlan:
    """The engine chosen, how it stores images, why, and what every engine would do."""

    engine: str
    memory_format: str
    reason: str
    candidates: tuple[Candidate, ...]

    def __str__(self) -> str:
        lines = [f"engine {self.engine} ({self.memory_format}): {self.reason}"]
        for c in self.candidates:
            if c.refusal:
                lines.append(f"  {c.engine:<8} not taken: {c.refusal}")
            else:
                counts = f"{c.forward:>15,} multiply-adds forward, {c.training:>15,} with backward"
                lines.append(f"  {c.engine:<8} {c.form:<19} {counts}, about {1e3 * c.seconds:.2f} ms")
        return "\n".join(lines)


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
    needs_grad: bool = True,
    device: str = "cpu",
    truncation_error: float = 0.0,
) -> EnginePlan:
    """Which engine ``conv_exp(..., engine="auto")`` takes, and why.

    >>> print(plan((128, 1024, 2, 2), (1024, 1024, 3, 3), degree=3).engine)
    dense
    >>> print(plan((128, 64, 16, 16), (64, 64, 3, 3), degree=3).engine)
    series
    >>> print(plan((128, 64, 16, 16), (64, 64, 3, 3), degree=3, padding_mode="circular").engine)
    spectral

    Args:
        image_shape: (batch, c, *size) with c <= m channels.
        filter_shape: (m, m / groups, *kernel).
        degree: number of products with J.
        out_channels: how many channels are kept; all m by default.
        dtype: of the images, real or complex.
        needs_grad: plan a training step rather than an evaluation.
        device: "cpu", or any other type of device.
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
    geometry = reachable(geometry, size)
    return plan_for(Request(image_shape[0], size, geometry, widths, degree, real, needs_grad, device, truncation_error))


def reachable(geometry: Geometry, size: tuple[int, ...]) -> Geometry:
    """The geometry without the taps that leave a zero-padded image from every pixel of it."""
    if geometry.padding_mode == "circular":
        return geometry
    axes = zip(geometry.kernel, geometry.dilation, size, strict=True)
    return replace(geometry, kernel=tuple(min(k, 2 * ((n - 1) // d) + 1) for k, d, n in axes))


@dataclass(frozen=True)
class Recipe:
    """Everything about an application that depends on shapes alone: chosen once, run again and again.

    Args:
        engine: that runs.
        dtype: that it computes in.
        task: what it is asked for, without the taps out of reach.
    """

    engine: Engine
    dtype: torch.dtype
    task: Application


def new_recipe(request: Request, p: Polynomial, engine: str, *, inverse: bool, recompute: bool) -> Recipe:
    """Which engine runs and what it is asked for.

    Args:
        request: with all taps of the filter.
        p: the polynomial.
        engine: a name, or "auto" for the plan's choice.
        inverse: apply p(-J).
        recompute: keep memory independent of the degree.
    """
    request = replace(request, geometry=reachable(request.geometry, request.size))
    check_engine(engine, request.geometry, request.size)
    name = engine if engine != AUTO else EVERY_REQUEST.name if tracing() else plan_for(request).engine
    chosen = ENGINES[name]
    steps = recurrence_of(p, inverse=inverse, recompute=recompute)
    task = Application(steps, request.geometry, request.widths, recompute)
    dtype = chosen.working_dtype(request.dtype, request.device)
    return Recipe(chosen, dtype if carries(dtype, p) else torch.float64, task)


def carries(dtype: torch.dtype, p: Polynomial) -> bool:
    """Whether the highest power of the filter cannot overflow: compared as logarithms, which do not."""
    # Compilers read fields, not properties.
    return len(p.coefficients) * math.log(max(p.norm_bound, 1.0)) < math.log(torch.finfo(dtype).max)


kept_recipe = lru_cache(maxsize=4096)(new_recipe)


@lru_cache(maxsize=4096)
def plan_for(request: Request) -> EnginePlan:
    """The plan for real images, once the taps out of reach are gone."""
    candidates = tuple(_candidate(engine, request) for engine in ENGINES.values())
    name, reason = _choice(request, candidates)
    return EnginePlan(name, ENGINES[name].memory_format(request), reason, candidates)


def _candidate(engine: Engine, request: Request) -> Candidate:
    if refusal := engine.refusal(request.geometry, request.size) or engine.reservation(request):
        return Candidate(engine.name, "", 0, 0, 0.0, refusal)
    counts = engine.cost(request)
    forward = counts.multiply_adds
    return Candidate(engine.name, counts.form.name, forward, 3 * forward, seconds(request, counts))


def _choice(request: Request, candidates: tuple[Candidate, ...]) -> tuple[str, str]:
    """The name of an engine, and why."""
    for engine in ENGINES.values():
        if reason := engine.preference(request):
            return engine.name, reason
    possible = [c for c in candidates if not c.refusal]
    best = min(possible, key=lambda c: c.seconds)
    others = [c for c in possible if c is not best]
    if not others:
        return best.engine, "no other engine can serve this request"
    next_best = min(others, key=lambda c: c.seconds)
    ratio = next_best.seconds / best.seconds
    work = best.forward / max(1, next_best.forward)
    return best.engine, (
        f"estimated {ratio:.2f} times as fast as {next_best.engine}, with {work:.2f} times its multiply-adds"
    )
