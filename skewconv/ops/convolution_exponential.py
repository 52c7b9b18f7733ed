"""The convolution exponential L *_e x: one entry, the table of engines below it, and which of them runs.

Engines apply the same polynomial of J, and are equal up to rounding. The choice depends on shapes, and on whether
oneDNN is this processor's faster library. Each engine states in ``advantage`` where it is the best: a rule or two,
found in the timings of ``benchmarks/records/plan.json`` and ``plan-random.json`` (processors, float32), and checked by
``benchmarks/bench_plan.py``.
"""

import math
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from skewconv.checks import IntOrTuple, check_finite, check_floating, check_positive
from skewconv.choices import PaddingMode
from skewconv.errors import ArgumentError, DtypeError, NormBoundError, ShapeError
from skewconv.ops.convolution import Geometry, check_skew
from skewconv.ops.engines import HALF_PRECISION, Engine, Request
from skewconv.ops.engines.dense_engine import DENSE_ENGINE
from skewconv.ops.engines.series_engine import SERIES_ENGINE
from skewconv.ops.engines.spectral_engine import SPECTRAL_ENGINE
from skewconv.ops.engines.winograd_engine import WINOGRAD_ENGINE
from skewconv.ops.norms import norm_estimate
from skewconv.ops.polynomials import Polynomial, degree_for, polynomial, recurrence_of
from skewconv.ops.products import onednn_is_faster
from skewconv.ops.recurrence import ChannelWidths, Recurrence, apply_recurrence
from skewconv.ops.series import DEFAULT_SERIES
from skewconv.ops.torch_modes import autocasting, tracing, without_autocast

# The check of the norm bound costs 2 * _POWER_STEPS convolutions of one image; it is made when that is at most an
# eighth of the work asked for, or less than this many multiplications.
_POWER_STEPS = 4
_CHEAP_OPERATIONS = 2**22


# A plan takes the first that has an advantage.
ENGINES: dict[str, Engine] = {
    engine.name: engine for engine in (SERIES_ENGINE, WINOGRAD_ENGINE, DENSE_ENGINE, SPECTRAL_ENGINE)
}

# The one that refuses nothing, and that a compiler sees: a plan would tie the compiled program to one batch size.
EVERY_REQUEST = SERIES_ENGINE

# Not an engine: the plan's choice.
AUTO = "auto"


def conv_exp(
    x: Tensor,
    skew: Tensor,
    *,
    norm_bound: float,
    degree: int | None = None,
    tol: float | None = None,
    series: str = DEFAULT_SERIES,
    padding_mode: PaddingMode = "zeros",
    dilation: IntOrTuple = 1,
    groups: int = 1,
    engine: str = AUTO,
    inverse: bool = False,
) -> Tensor:
    """exp(J) x for the Jacobian J of a skew filter: orthogonal, to a proven error (Section 5 of the paper).

    >>> import torch
    >>> from skewconv import ops
    >>> x, skew = torch.randn(2, 4, 8, 8), ops.skew_filter(torch.randn(4, 4, 3, 3))
    >>> y = ops.conv_exp(x, skew, norm_bound=ops.norm_upper_bound(skew), tol=1e-5)
    >>> torch.testing.assert_close(y.norm(), x.norm())

    The polynomial's error is at most ``truncation_error(norm_bound, degree, series)`` as long as ``norm_bound`` really
    bounds ||J||. A bound that is much too small is refused where that is cheap to notice; take it from
    :func:`norm_upper_bound`.

    Args:
        x: (batch, m, *size) or (m, *size), real or complex, one to three spatial axes.
        skew: (m, m / groups, *kernel), a skew filter (see :func:`skew_filter`), the dtype of x.
        norm_bound: an upper bound on ||J||.
        degree: number of convolutions; give this or ``tol``.
        tol: the largest truncation error allowed; the smallest degree that has it is taken.
        series: "chebyshev" or "taylor" (the paper's; ``degree=K - 1`` for its K terms).
        padding_mode: "zeros" or "circular" (a kernel wider than the image wraps as often as it must).
        dilation: distance between taps, one or one per axis.
        groups: number of independent channel groups.
        engine: "auto" (see :func:`plan`), or one by name: "series" (convolutions), "dense" (small images), "spectral"
            (circular padding) or "winograd" (wide 3 x 3 filters). All compute the same polynomial.
        inverse: apply exp(-J), the inverse and the adjoint of exp(J).

    Returns:
        The shape and dtype of x.
    """
    check_skew(skew, groups=groups)
    geometry = Geometry.of(tuple(skew.shape[2:]), padding_mode, dilation, groups)
    _check_input(x, skew)
    rho = check_positive(norm_bound, "norm_bound")
    if (degree is None) == (tol is None):
        given = "neither" if degree is None else "both"
        raise ArgumentError(f"give degree (number of convolutions) or tol (largest error), one of them; got {given}")
    if degree is None:
        assert tol is not None
        degree = degree_for(rho, tol, series)
    _check_norm_bound(x, skew, rho, geometry, degree)
    return apply_polynomial(x, skew, polynomial(rho, degree, series), geometry, inverse=inverse, engine=engine)


def apply_polynomial(
    x: Tensor,
    skew: Tensor,
    p: Polynomial,
    geometry: Geometry,
    *,
    out_channels: int | None = None,
    inverse: bool = False,
    engine: str = AUTO,
    recompute: bool = False,
) -> Tensor:
    """p(J) x, or p(-J) x = p(J)^H x if inverse, without checks, for layers that have made theirs.

    The images (batch, c, *size) or (c, *size) may have c < m channels, each group's missing ones being zero;
    ``out_channels`` are kept, the first of each group.
    """
    again = partial(apply_polynomial, p=p, geometry=geometry, inverse=inverse, engine=engine, recompute=recompute)
    if x.dim() == geometry.axes + 1:
        return again(x[None], skew, out_channels=out_channels)[0]
    if x.is_complex():
        real_channels = None if out_channels is None else 2 * out_channels
        # Autocast leaves complex tensors alone, and so their parts.
        with without_autocast(x.device):
            parts = torch.view_as_real(x).movedim(-1, 2).flatten(1, 2)
            # a + ib becomes ((a, -b), (b, a)), real and imaginary parts alternating: the first channels stay the first.
            re, im = skew.real, skew.imag
            rows = torch.stack([torch.stack([re, -im], 2), torch.stack([im, re], 2)], 1)
            y = again(parts, rows.flatten(2, 3).flatten(0, 1), out_channels=real_channels)
            return torch.complex(*y.unflatten(1, (-1, 2)).unbind(2))
    groups, channels = geometry.groups, skew.shape[0] // geometry.groups
    outputs = channels if out_channels is None else out_channels // groups
    widths = ChannelWidths(groups, channels, x.shape[1] // groups, outputs)
    if autocasting(x.device):
        # As autocast casts the operands of a convolution: all but float64, and once for the whole recurrence.
        half = torch.get_autocast_dtype(x.device.type)
        x, skew = (t if t.dtype == torch.float64 else t.to(half) for t in (x, skew))
    # A compiler looks through a cache and warns of it.
    recipe_for = new_recipe if tracing() else kept_recipe
    chosen, dtype, request, steps = recipe_for(
        tuple(x.shape), x.dtype, x.device.type, geometry, widths, p, engine, inverse=inverse, recompute=recompute
    )
    with without_autocast(x.device):
        images, weight = x.to(dtype), request.geometry.within_reach(skew).to(dtype)
        states, operators, products, restore = chosen.arrange(images, weight, request)
        made = [
            apply_recurrence(state, operator, steps, way, recompute=recompute)
            for state, operator, way in zip(states, operators, products, strict=True)
        ]
        return restore(*made).to(x.dtype)


def _check_input(x: Tensor, skew: Tensor) -> None:
    check_floating(x, "x")
    axes = skew.dim() - 2
    if x.dim() not in (axes + 1, axes + 2) or x.shape[-axes - 1] != skew.shape[0]:
        raise ShapeError(
            f"x must have shape (batch, {skew.shape[0]}, *size) or ({skew.shape[0]}, *size) with {axes} spatial axes "
            f"for a filter of shape {tuple(skew.shape)}, got {tuple(x.shape)}"
        )
    if 0 in x.shape[-axes:]:
        raise ShapeError(f"x has an empty image: shape {tuple(x.shape)}; every spatial size must be at least 1")
    cast = autocasting(x.device) and x.is_complex() == skew.is_complex()
    if x.dtype != skew.dtype and not cast:
        raise DtypeError(f"x is {x.dtype} and skew is {skew.dtype}; convert one: x.to(skew.dtype)")
    if x.device != skew.device:
        raise ArgumentError(f"x is on {x.device} and skew on {skew.device}; move one: x.to(skew.device)")
    check_finite(x, "x")


def _check_norm_bound(x: Tensor, skew: Tensor, rho: float, geometry: Geometry, degree: int) -> None:
    if torch.compiler.is_compiling():
        return
    size = tuple(x.shape[-geometry.axes :])
    operations = skew.numel() * torch.Size(size).numel()
    images = x.shape[0] if x.dim() == geometry.axes + 2 else 1
    wide = skew.detach().to(torch.complex128 if skew.is_complex() else torch.float64)
    if operations <= _CHEAP_OPERATIONS or images * degree >= 8 * 2 * _POWER_STEPS:
        found = norm_estimate(
            wide, size, geometry.padding_mode, _POWER_STEPS, dilation=geometry.dilation, groups=geometry.groups
        )
    elif all(n > 2 * r for n, r in zip(size, geometry.reach, strict=True)):
        # The image of one pixel in the middle: a column of the filter, taps and output channels together.
        blocks = wide.unflatten(0, (geometry.groups, -1)).flatten(3)
        found = float(torch.linalg.vector_norm(blocks, dim=(1, 3)).max())
    else:
        return
    if found > rho * (1 + 1e-5):
        raise NormBoundError(
            f"norm_bound={rho:.6g} is below the norm of the Jacobian, which is at least {found:.6g} on an image of "
            f"size {size}; pass norm_bound=norm_upper_bound(skew), or scale the filter down"
        )


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
    onednn: bool | None = None,
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
        onednn: True for a processor on which oneDNN multiplies faster than MKL (default: whether this is one).
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
    faster = onednn_is_faster() if onednn is None else onednn
    return _plan_for(Request(image_shape[0], size, geometry, widths, degree, real, device, truncation_error, faster))


def _plan_for(request: Request) -> EnginePlan:
    if request.device != "cpu":
        return EnginePlan(EVERY_REQUEST.name, f"nothing was measured on {request.device!r}")
    in_half = request.dtype in HALF_PRECISION
    for engine in (DENSE_ENGINE, SPECTRAL_ENGINE) if in_half else ENGINES.values():
        if not engine.refusal(request.geometry, request.size) and (reason := engine.advantage(request)):
            return EnginePlan(engine.name, reason)
    if in_half:
        half = str(request.dtype).removeprefix("torch.")
        return EnginePlan(EVERY_REQUEST.name, f"convolutions run in {half}, other engines in float32")
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
    """What depends on shapes and the processor: engine, the dtype it computes in, the request and the recurrence.

    The images (batch, c, *size) are real; the geometry has all taps of the filter.
    """
    size = shape[2:]
    geometry = geometry.on_image(size)
    check_engine(engine, geometry, size)
    # A compiler multiplies by itself.
    faster = not tracing() and onednn_is_faster()
    request = Request(shape[0], size, geometry, widths, p.degree, dtype, device, p.truncation_error, faster)
    name = engine
    if engine == AUTO:
        # A plan would tie a compiled program to one batch size.
        name = EVERY_REQUEST.name if tracing() else _plan_for(request).engine
    # A compiler has its own ways to save memory.
    steps = recurrence_of(p, inverse=inverse, reversible=recompute and not torch.compiler.is_compiling())
    working = ENGINES[name].working_dtype(request)
    # The highest power of the filter may not overflow: compared as logarithms, which do not.
    overflows = len(p.coefficients) * math.log(max(p.norm_bound, 1.0)) >= math.log(torch.finfo(working).max)
    return ENGINES[name], torch.float64 if overflows else working, request, steps


kept_recipe = lru_cache(maxsize=4096)(new_recipe)
