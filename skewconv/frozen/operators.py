"""The operators of frozen layers, computed in double precision, and the proof of their gain."""

import math

import torch
from torch import Tensor

from skewconv.frozen.layers import FrozenSeries
from skewconv.ops.engines import spectral
from skewconv.ops.engines.adjoint import run
from skewconv.ops.engines.channels import Cut
from skewconv.ops.engines.matrices import Matrices
from skewconv.ops.engines.steps import steps_of
from skewconv.rigor import factor_down, factor_up, gram_defect_upper_bound, non_expansive_scale

_CHUNK_BYTES = 2**28


def dense_operator(series: FrozenSeries) -> Tensor:
    """The matrix (entries out, entries in) of a linear map, from whichever side has fewer basis vectors."""
    backwards = torch.Size(series.output_shape).numel() < torch.Size(series.input_shape).numel()
    applied = series.adjoint() if backwards else series
    length, width = torch.Size(applied.input_shape).numel(), torch.Size(applied.output_shape).numel()
    chunk = max(1, _CHUNK_BYTES // (series.weight.element_size() * width))
    images: list[Tensor] = []
    for start in range(0, length, chunk):
        count = min(chunk, length - start)
        basis = torch.zeros(count, length, dtype=series.weight.dtype, device=series.weight.device)
        basis[torch.arange(count), torch.arange(start, start + count)] = 1
        images.append(applied.linear(basis.unflatten(1, applied.input_shape)).flatten(1))
    rows = torch.cat(images)
    return rows.conj().resolve_conj() if backwards else rows.T.contiguous()


def spectral_operator(series: FrozenSeries) -> Tensor:
    """p(L^(f)), or p(L^(f))^H if it upsamples: (frequencies * groups, outputs, inputs), complex."""
    groups, channels = series.geometry.groups, series.weight.shape[1]
    cut = Cut(1, channels, series.read_channels // groups, series.kept_channels // groups)
    symbols = spectral.symbol(series.weight, series.geometry, series.image_size).flatten(0, 1)
    identity = torch.eye(cut.inputs, dtype=symbols.dtype, device=symbols.device).repeat(len(symbols), 1, 1)
    steps = steps_of(series.polynomial, inverse=False, recompute=False)
    # Rows of the identity go in, so what comes out is the transpose.
    columns = run(identity, symbols, steps, Matrices(cut), recompute=False).mT
    return columns.mH if series.upsamples else columns


def as_real_products(matrices: Tensor) -> Tensor:
    """(n, out, in) complex -> (n, 2 in, 2 out) real, to be multiplied from the left by (real, imaginary) parts."""
    re, im = matrices.real.mT, matrices.imag.mT
    return torch.cat([torch.cat([re, im], 2), torch.cat([-im, re], 2)], 1)


def proven(
    exact: Tensor, dtype: torch.dtype, gain: tuple[float, float], tol: float, injective: bool
) -> tuple[Tensor, tuple[float, float]]:
    """An operator rounded to its dtype, and the proven gain of what was rounded.

    A map that is orthogonal to the tolerance is also shrunk by about one rounding error, so that its gain is proven to
    be at most one; one that is further off (a degree the user fixed) keeps its scale and says its gain.

    Args:
        exact: (*batch, out, in) in double precision.
        dtype: to round to.
        gain: of the polynomial the operator was made from, which says how far off it may be.
        tol: the largest relative change allowed.
        injective: whether nothing is cut off, so that the smallest gain means something.
    """
    off = max(1 - gain[0], gain[1] - 1)
    if off <= tol:
        scale, (low, high) = non_expansive_scale(exact, dtype)
        rounded = (exact * scale).to(dtype)
    else:
        rounded = exact.to(dtype)
        defect = gram_defect_upper_bound(rounded)
        low, high = math.sqrt(max(0.0, 1 - defect)) * factor_down(8), math.sqrt(1 + defect) * factor_up(8)
    return rounded, (low if injective else 0.0, high)
