"""Euclidean norms rounded up at every scale: squares of numbers below 1e-162 vanish, of those above 1e154 overflow."""

import torch
from torch import Tensor

from skewconv.rigor.summation import norm_factor_up


def vector_norm_up(vectors: Tensor, *, safety: int = 1) -> Tensor:
    """Norms >= ||v|| over the last axis, in float64: (*batch, n) -> (*batch).

    Entries are scaled by a power of two before they are squared, so that only the zero vector has norm zero, and only a
    vector whose norm is no float64 has an infinite one. NaN stays NaN.

    >>> tiny = torch.full((4,), 2.0**-560, dtype=torch.float64)
    >>> float(torch.linalg.vector_norm(tiny)), float(vector_norm_up(tiny)) >= 2.0**-559
    (0.0, True)

    Args:
        vectors: floating or complex.
        safety: see :func:`norm_factor_up`; 2 where the entries are rounded themselves, such as differences.
    """
    exact = vectors.detach().to(torch.complex128 if vectors.is_complex() else torch.float64)
    parts = torch.view_as_real(exact.resolve_conj()).flatten(-2) if exact.is_complex() else exact
    if parts.shape[-1] == 0:
        return parts.new_zeros(parts.shape[:-1])
    largest = parts.abs().amax(-1)
    exponent = torch.frexp(largest).exponent.where(torch.isfinite(largest), torch.zeros((), dtype=torch.int32))
    norms = torch.linalg.vector_norm(_times_power_of_two(parts, -exponent.unsqueeze(-1)), dim=-1)
    norms = _times_power_of_two(norms * norm_factor_up(parts.shape[-1], safety), exponent)
    # Among the denormals the way back rounds, by less than one of them.
    return torch.where(largest > 0, torch.nextafter(norms, torch.full_like(norms, torch.inf)), largest)


def _times_power_of_two(x: Tensor, exponent: Tensor) -> Tensor:
    """x 2^e in two steps, because 2^1074 is no float64 while the least denormal is 2^-1074."""
    half = exponent // 2
    return x * _power_of_two(half) * _power_of_two(exponent - half)


def _power_of_two(exponent: Tensor) -> Tensor:
    """2^e for |e| < 1023, from the bits of a float64: a library's power function may round."""
    return ((exponent.to(torch.int64) + 1023) << 52).view(torch.float64)
