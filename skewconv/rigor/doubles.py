"""Tensors taken to double precision and scaled, both without any rounding."""

import math

import torch
from torch import Tensor


def in_double(tensor: Tensor) -> Tensor:
    """The tensor detached, on the CPU, in float64 or complex128: exact for every floating dtype."""
    dtype = torch.complex128 if tensor.is_complex() else torch.float64
    return tensor.detach().to("cpu", dtype).resolve_conj().resolve_neg()


def power_of_two_scaled(tensor: Tensor) -> tuple[Tensor, int]:
    """(t, e) with tensor = t 2^e and the largest real or imaginary part of t in [1/2, 1); e = 0 for zeros.

    Exact, but for entries 1e-300 times the largest, which underflow by less than any margin that is added later. The
    way back, for a bound, is ``ldexp_up``.

    >>> power_of_two_scaled(torch.tensor([3.0, -6.0], dtype=torch.float64))
    (tensor([ 0.3750, -0.7500], dtype=torch.float64), 3)
    """
    parts = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    _, exponent = math.frexp(float(parts.abs().max()))
    # Two steps, because 2^1074 is not a float64 while the smallest denormal is 2^-1074.
    half = -exponent // 2
    return tensor * math.ldexp(1.0, half) * math.ldexp(1.0, -exponent - half), exponent
