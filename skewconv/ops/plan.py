"""Which engine runs, and why: a pure function of shapes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import get_args

import torch

from skewconv.checks import IntOrTuple, PaddingMode
from skewconv.errors import ArgumentError, ShapeError
from skewconv.ops.convolution import Geometry
from skewconv.ops.engines import Engine, dense, series, spectral
from skewconv.ops.engines.channels import Cut
from skewconv.ops.engines.costs import Counts, Request, count_dense, count_series, count_spectral, seconds

__all__ = ["Candidate", "Engine", "Plan", "check_engine", "plan", "plan_for", "reachable"]

_HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Candidate:
    """What one engine would do.

    Arguments:
        engine: its name.
        form: what its products are: convolutions (uneven ones fill up channels to a multiple of 16; one image takes a
            simpler path), columns of pixels times the filter, one matrix, blocks of one, or a matrix for each
            frequency (after an fft where images are large).
        forward: multiply-adds of an evaluation.
        training: multiply-adds of a training step: forward, adjoint, and gradient of the filter.
        seconds: the estimated time of what was asked for; only good for comparison.
        refusal: why the engine cannot serve the request, or empty.
    """

    engine: str
    form: str
    forward: int
    training: int
    seconds: float
    refusal: str = ""


@dataclass(frozen=True)
class Plan:
    """The engine chosen, how it stores images, why, and what every engine would do."""

    engine: str
    memory_format: str
    reason: str
    candidates: tuple[Candidate, ...]

    def __str__(self) -> str:
        lines = [f"engine {self.engine} ({self.memory_format}): {self.reason}"]
        for c in self.candidates:
            if c.refusal:
                lines.append(f"  {c.engine:<8} not possible: {c.refusal}")
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
) -> Plan:
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
    width = 2 if dtype.is_complex else 1
    cut = Cut(groups, width * channels, width * inputs, width * outputs)
    size, real = tuple(image_shape[2:]), dtype.to_real() if dtype.is_complex else dtype
    return plan_for(Request(image_shape[0], size, reachable(geometry, size), cut, degree, real, needs_grad, device))


def reachable(geometry: Geometry, size: tuple[int, ...]) -> Geometry:
    """The geometry without the taps that leave a zero-padded image from every pixel of it."""
    if geometry.padding_mode == "circular":
        return geometry
    axes = zip(geometry.kernel, geometry.dilation, size, strict=True)
    return replace(geometry, kernel=tuple(min(k, 2 * ((n - 1) // d) + 1) for k, d, n in axes))


@lru_cache(maxsize=4096)
def plan_for(request: Request) -> Plan:
    """The plan for real images with the channels of the cut, once the taps out of reach are gone."""
    candidates = [_candidate("series", request, count_series(request))]
    for engine, count in (("dense", count_dense), ("spectral", count_spectral)):
        refusal = refused(engine, request.geometry, request.size)
        counts = Counts("", 0, 0, 0, 0) if refusal else count(request)
        candidates.append(_candidate(engine, request, counts, refusal))
    engine, reason = _choice(request, candidates)
    order = series.memory_format(request.cut.channels, request.size, request.geometry.padding_mode)
    convolves = engine == "series" and candidates[0].form != "columns"
    last = convolves and order != torch.contiguous_format
    return Plan(engine, "channels_last" if last else "contiguous", reason, tuple(candidates))


def _candidate(engine: str, request: Request, counts: Counts, refusal: str = "") -> Candidate:
    time = 0.0 if refusal else seconds(request, counts)
    return Candidate(engine, counts.form, counts.multiply_adds, 3 * counts.multiply_adds, time, refusal)


def _choice(request: Request, candidates: list[Candidate]) -> tuple[str, str]:
    if request.device != "cpu":
        return "series", f"convolutions are the safe choice on {request.device!r}, where nothing was measured"
    if request.dtype in _HALVES:
        half = str(request.dtype).removeprefix("torch.")
        return "series", f"convolutions run in {half}, the other engines in float32"
    if request.pixels == 1:
        return "dense", "on a single pixel J is one matrix, and nothing beats a product with it"
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


def refused(engine: str, geometry: Geometry, size: tuple[int, ...]) -> str:
    """Why an engine cannot serve a request, or an empty string."""
    if engine == "dense":
        return dense.refusal(geometry, size)
    return spectral.refusal(geometry) if engine == "spectral" else ""


def check_engine(engine: str, geometry: Geometry, size: tuple[int, ...]) -> None:
    """Refuse an engine that does not exist or cannot serve the request."""
    if engine not in get_args(Engine):
        raise ArgumentError(f"engine must be one of {', '.join(map(repr, get_args(Engine)))}, got {engine!r}")
    if refusal := refused(engine, geometry, size):
        raise ArgumentError(f"engine={engine!r} cannot serve this request: {refusal}; use engine='auto'")
