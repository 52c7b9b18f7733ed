"""Proven (min, max) of ||f(x) - f(y)|| / ||x - y|| for a primitive, kept until its tensors or settings change."""

import math
from collections.abc import Hashable, Sequence
from fractions import Fraction
from functools import singledispatch
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from skewconv.errors import ArgumentError, NotFiniteError
from skewconv.nn.eval_operator import fingerprint
from skewconv.nn.primitives import Convolution, Dense, Primitive, ResidualStep, SkewExponential, Spectral
from skewconv.ops.convolution import skew_defect
from skewconv.ops.fourier import grid, half_of_frequencies, image_waves, separate_tables
from skewconv.ops.gram_row_sums import scaled_gram_upper_bound
from skewconv.ops.norms import norm_upper_bound, norm_upper_bound_at
from skewconv.rigor import (
    ERROR_UP,
    FEW_ROUNDINGS_UP,
    MILLIONS_DOWN,
    UNIT_ROUNDOFF,
    filter_gram_defect_upper_bound,
    gamma,
    gram_defect_upper_bound,
    in_double,
    ldexp_up,
    non_expansive_scale,
    power_of_two_scaled,
    round_up,
    spectral_norm_upper_bound,
    sqrt_down,
    sqrt_up,
)

# A kernel of this side has a gain that is proven for every image at once.
_FEW_TAPS = 5
Module = TypeVar("Module", bound=nn.Module)


def with_gain(module: Module, gain: tuple[float, float]) -> Module:
    """The module, with a proven gain of its tensors as they are now."""
    vars(module)["_proven"] = (_content(module), (float(gain[0]), float(gain[1])))
    return module


def kept_gain(module: nn.Module) -> tuple[float, float] | None:
    """The gain that was proven of a module; None if it has changed since, or nothing was proven."""
    content, gain = vars(module).get("_proven", ((), None))
    return gain if gain is not None and content == _content(module) else None


def gain_bounds(module: nn.Module) -> tuple[float, float]:
    """Proven (min, max) gain of a primitive as it is now."""
    gain = kept_gain(module)
    if gain is None:
        gain = proven_gain(module)
        with_gain(module, gain)
    return gain


def _content(module: nn.Module) -> tuple[Hashable, ...]:
    tensors = [t for _, t in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]]
    if any(tensor.is_meta for tensor in tensors):
        return ("meta",)
    settings = [(k, v) for k, v in vars(module).items() if not k.startswith("_") and k != "training"]
    # A copy in float64 holds the same numbers, and has the same gain.
    return (*(part[:2] for part in fingerprint(*map(in_double, tensors))), repr(settings))


@singledispatch
def proven_gain(module: nn.Module) -> tuple[float, float]:
    """(min, max) of the gain, proven anew from the tensors alone; one function a primitive."""
    raise ArgumentError(f"nothing proves the gain of a {type(module).__name__}")


@proven_gain.register
def _dense(module: Dense) -> tuple[float, float]:
    low, high = gain_of_matrices(module.weight)
    return low if module.is_injective() else 0.0, high


@proven_gain.register
def _linear(module: nn.Linear) -> tuple[float, float]:
    return 0.0, spectral_norm_upper_bound(module.weight)


@proven_gain.register
def _convolution(module: Convolution) -> tuple[float, float]:
    """By the taps of J^T J - s I where the filter is near to orthogonal, else by its symbol or its row sums.

    A large kernel has more taps, so that its symbol at the frequencies of the image is the shorter proof, and one that
    covers the image may be orthogonal on this image alone. With zeros around it, an image is part of a larger torus, so
    that its convolution is no larger than a circular one.
    """
    kernel, size = module.geometry.kernel, module.output_shape[1:]
    circular = module.padding_mode == "circular"
    if circular and (any(k >= n for k, n in zip(kernel, size, strict=True)) or max(kernel) > _FEW_TAPS):
        least, most = gain_on_image(module.weight, size)
        return least if module.is_injective() else 0.0, most
    scaled, exponent = power_of_two_scaled(in_double(module.weight))
    square = float(scaled.square().sum()) / min(module.weight.shape[:2])
    defect = filter_gram_defect_upper_bound(scaled, square)
    if not defect <= 0.01 * square:
        by_rows = ldexp_up(sqrt_up(Fraction(scaled_gram_upper_bound(scaled))), exponent)
        return 0.0, min(norm_upper_bound(module.weight), by_rows)
    low, high = gain_around(square, defect, exponent)
    return low if module.is_injective() and circular else 0.0, high


@proven_gain.register
def _spectral(module: Spectral) -> tuple[float, float]:
    gains = [gain_of_matrices(weight) for weight in (module.real_weight, module.weight) if len(weight)]
    low, high = min(low for low, _ in gains), max(high for _, high in gains)
    return _between_tables(low, high, gain_of_tables(module.tables), module.is_injective())


@proven_gain.register
def _skew_exponential(module: SkewExponential) -> tuple[float, float]:
    """The polynomial's gain on its interval, if the filter is skew and its norm is proven to lie in there."""
    g, weight, interval = module.geometry, module.weight, module.polynomial.norm_bound
    if skew_defect(weight, g.groups) != 0.0:
        raise ArgumentError("the filter of this SkewExponential is not skew, so nothing is known of its exponential")
    here = {"dilation": g.dilation, "groups": g.groups}
    if (
        not norm_upper_bound_at(weight, module.image_size, g.padding_mode, **here) <= interval  # type: ignore[arg-type]
        and not norm_upper_bound(weight, "fantastic-four", groups=g.groups) <= interval
    ):
        raise ArgumentError(
            f"the filter of this SkewExponential is not proven to have a norm of at most {interval}, the interval of "
            "its polynomial; freeze the original again"
        )
    low, high = module.polynomial.gain
    return low if module.is_injective() else 0.0, high


@proven_gain.register
def _residual_step(module: ResidualStep) -> tuple[float, float]:
    """(0, max(1, 2 m^2 - 1)) with m^2 >= ||W S^(1/2)||^2: the Jacobians are between I - 2 m^2 and I.

    m^2 is from the norm of the filter and the largest scale (CPL), or from the row sums of its Gram operator (SLL).
    """
    if not bool(((module.scale >= 0) & torch.isfinite(module.scale)).all()):
        raise NotFiniteError("the scale of a ResidualStep must be finite and not negative; freeze the model again")
    largest, norm = Fraction(float(module.scale.max())), Fraction(norm_upper_bound(module.weight))
    rows = Fraction(scaled_gram_upper_bound(module.weight.transpose(0, 1), module.scale))
    return 0.0, max(1.0, round_up(2 * min(largest * norm**2, rows) - 1))


def check_shapes(module: Primitive) -> None:
    """Refuse a primitive whose tensors do not map between the shapes that it states."""
    like = next(module.buffers())
    try:
        with torch.no_grad():
            made = module.map_batch(like.new_zeros(1, *module.input_shape))
    except RuntimeError as error:
        raise ArgumentError(f"a {type(module).__name__} whose tensors do not fit each other ({error})") from error
    if tuple(made.shape[1:]) != module.output_shape:
        stated, found = module.output_shape, tuple(made.shape[1:])
        raise ArgumentError(f"a {type(module).__name__} states outputs of shape {stated}, and makes {found}")


#: a wave in float64: an angle of at most a few turns, its cosine or sine, its share
WAVE_ERROR = 64 * UNIT_ROUNDOFF


def rounded_with_gain(
    exact: Tensor, dtype: torch.dtype, gain: tuple[float, float], tol: float, injective: bool, *, stretch: float = 1.0
) -> tuple[Tensor, tuple[float, float]]:
    """An operator (*batch, out, in) rounded from float64 to its dtype, and the proven gain of what was rounded.

    A map that is orthogonal to the tolerance is also shrunk by about one rounding error, so that its gain is proven to
    be at most one; one that is further off (a degree the user fixed) keeps its scale and says its gain. ``gain`` is of
    the polynomial that it was made from; what surrounds the operator stretches by at most ``stretch``.
    """
    off = max(1 - gain[0], gain[1] - 1)
    if off <= tol:
        scale, (low, high) = non_expansive_scale(exact, dtype, stretch=stretch)
        rounded = (exact * scale).to(dtype)
    else:
        rounded = exact.to(dtype)
        low, high = gain_of_matrices(rounded)
    return rounded, (low if injective else 0.0, high)


def gain_of_matrices(matrices: Tensor) -> tuple[float, float]:
    """Proven (min, max) of the singular values of matrices (*batch, rows, columns), from their entries alone.

    By A^H A - s I for the mean square s of the singular values where all are alike, else by the largest eigenvalue.
    """
    # Squares of what is scaled neither underflow nor overflow.
    scaled, exponent = power_of_two_scaled(in_double(matrices))
    square = float((scaled.abs().square().sum((-2, -1)) / min(matrices.shape[-2:])).mean())
    defect = gram_defect_upper_bound(scaled, square)
    if not defect <= 0.01 * square:
        return 0.0, spectral_norm_upper_bound(matrices)
    return gain_around(square, defect, exponent)


def gain_around(square: float, defect: float, exponent: int) -> tuple[float, float]:
    """2^exponent (sqrt(s - e), sqrt(s + e)), rounded outward: the singular values where ||A^H A - s I|| <= e."""
    low, high = max(Fraction(0), Fraction(square) - Fraction(defect)), Fraction(square) + Fraction(defect)
    # Near the ends of float64 even a power of two rounds, or overflows; zero is always below.
    smallest = math.ldexp(sqrt_down(low), exponent) if -900 < exponent < 900 else 0.0
    return smallest, ldexp_up(sqrt_up(high), exponent)


def gain_on_image(weight: Tensor, size: tuple[int, ...]) -> tuple[float, float]:
    """Proven (min, max) of the singular values of a circular convolution on images of one size: those of its symbol.

    The symbol at a frequency is the sum of the taps times waves. A wave is known to a few units in the last place, and
    the sum errs by gamma of the absolute taps, entry by entry. Kernels have odd sizes, and may wrap around the image.
    """
    taps, exponent = power_of_two_scaled(in_double(weight).flatten(2))
    positions = grid([torch.arange(k) - k // 2 for k in weight.shape[2:]])
    cosines, sines = image_waves(half_of_frequencies(size), positions, size)
    symbol = torch.complex(*(torch.einsum("ft,oit->foi", wave, taps) for wave in (cosines, sines)))
    low, high = gain_of_matrices(symbol)
    # Real and imaginary part of each entry err by this share of the absolute taps, so the matrix by its norm.
    share = (WAVE_ERROR + gamma(taps.shape[2] + 4)) * math.sqrt(2)
    error = share * float(torch.linalg.vector_norm(taps.abs().sum(2))) * ERROR_UP
    least = math.ldexp(max(0.0, (low - error) * MILLIONS_DOWN), exponent) if -900 < exponent < 900 else 0.0
    return least, ldexp_up((high + error) * FEW_ROUNDINGS_UP, exponent)


def spectral_layer(
    real: Tensor,
    pairs: Tensor,
    dtype: torch.dtype,
    size: tuple[int, ...],
    *,
    gain: tuple[float, float],
    tol: float,
    injective: bool,
    device: torch.device,
    **common: Any,
) -> Spectral:
    """The layer from its matrices (frequencies * groups, outputs, inputs) on images of this size.

    ``real`` are those at real frequencies, in float64, ``pairs`` at one of each pair of conjugates, in complex128
    (:func:`skewconv.ops.fourier.distinct_frequencies`); gain, tol and injective as in :func:`rounded_with_gain`.
    """
    tables = [table.to(dtype) for table in separate_tables(size)]
    ends = gain_of_tables(tables)
    stretch, gains, kept = ends[1] ** 2 * FEW_ROUNDINGS_UP, [], []
    for exact, precision in ((real, dtype), (pairs, dtype.to_complex())):
        rounded = exact.to(precision)
        if len(exact):
            rounded, proven = rounded_with_gain(exact, precision, gain, tol, injective, stretch=stretch)
            gains.append(proven)
        kept.append(rounded)
    layer = Spectral.of_matrices(kept[0], kept[1], tables, **common).to(device)
    low, high = min(low for low, _ in gains), max(high for _, high in gains)
    return with_gain(layer, _between_tables(low, high, ends, injective))


def gain_of_tables(tables: Sequence[Tensor]) -> tuple[float, float]:
    """Proven (min, max) gain of the transform that they make, in two steps."""
    (least, most), *columns = (gain_of_matrices(table) for table in tables if len(table))
    low, high = min(low for low, _ in columns), max(high for _, high in columns)
    return least * low * MILLIONS_DOWN, most * high * FEW_ROUNDINGS_UP


def _between_tables(low: float, high: float, ends: tuple[float, float], injective: bool) -> tuple[float, float]:
    """The gain of matrices between a transform and its transpose, from its own."""
    stretch = ends[1] ** 2 * FEW_ROUNDINGS_UP
    largest = high * stretch * FEW_ROUNDINGS_UP
    # Where the matrices were shrunk to make up for the transform, the product is at most one by construction.
    most = 1.0 if largest > 1.0 and high <= 1.0 / stretch else largest
    return low * ends[0] ** 2 * MILLIONS_DOWN if injective else 0.0, most
