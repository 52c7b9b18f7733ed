"""PyTorch's linear maps: matrices, convolutions, batch normalisation, and chains of modules."""

import math
from fractions import Fraction
from typing import Any, TypeAlias

import torch
from torch import nn

from skewconv.errors import NotFiniteError
from skewconv.nn.protocol import (
    NOTHING,
    Float64Program,
    Growth,
    Links,
    NoBoundError,
    Shape,
    lipschitz_upper_bound,
    module_program,
    output_shape,
)
from skewconv.nn.protocol.filter_facts import filter_norms
from skewconv.nn.protocol.products import matrix_program, product_error
from skewconv.ops.norms import norm_upper_bound
from skewconv.rigor import (
    ERROR_UP,
    absolute_norm_upper_bound,
    gamma,
    in_double,
    product_up,
    spectral_norm_upper_bound,
    sqrt_up,
    vector_norm_up,
)

Conv: TypeAlias = nn.Conv1d | nn.Conv2d | nn.Conv3d
ConvTranspose: TypeAlias = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d


def linear_bound(module: nn.Linear, shape: Shape) -> float:
    """The spectral norm of the matrix."""
    return spectral_norm_upper_bound(module.weight)


def linear_program(module: nn.Linear, shape: Shape) -> Float64Program:
    """One matrix product."""
    return matrix_program(module.weight, module.bias, shape)


def conv_bound(module: Conv, shape: Shape) -> float:
    """Fewer outputs (stride, cropping) and zeros around the image only restrict the convolution on the whole grid."""
    if module.padding_mode == "circular":
        # What the forward reads, (before, after) from the last axis to the first; the attribute padding may be edited.
        pads = module._reversed_padding_repeated_twice
        room = [d * (k - 1) for d, k in zip(module.dilation, module.weight.shape[2:], strict=True)]
        if any(a + b > n for a, b, n in zip(pads[::2], pads[1::2], reversed(room), strict=True)):
            raise NoBoundError(module, "its circular padding is wider than the kernel, so outputs are repeated")
    elif module.padding_mode != "zeros":
        raise NoBoundError(module, f"padding_mode={module.padding_mode!r} repeats pixels at the border")
    return norm_upper_bound(module.weight, groups=module.groups)


def conv_program(module: Conv, shape: Shape) -> Float64Program:
    """PyTorch's own convolution, a sum of products."""
    plain = module_program(module, shape, NOTHING)
    norm, pixels = absolute_norm_upper_bound(module.weight, module.groups), torch.Size(plain.shape[1:]).numel()
    return module_program(module, shape, product_error(module.weight.detach(), norm, module.bias, pixels))


def conv_facts(module: Conv, shape: Shape) -> dict[str, Any]:
    """The norm of the filter by every method, at the size of the image."""
    return filter_norms(module.weight, shape[1:], module.padding_mode, module.dilation, module.groups)


def conv_transpose_bound(module: ConvTranspose, shape: Shape) -> float:
    """The norm of the adjoint convolution."""
    return norm_upper_bound(module.weight, groups=module.groups)


def batch_norm_bound(module: nn.BatchNorm2d, shape: Shape) -> float:
    """max |weight| / sqrt(variance + eps), exactly."""
    if module.running_var is None:
        raise NoBoundError(module, "without running statistics each input is divided by its own deviation")
    variances = in_double(module.running_var).tolist()
    # What the forward reads; the attribute affine may be edited.
    factors = [1.0] * len(variances) if module.weight is None else in_double(module.weight).abs().tolist()
    if any(not (math.isfinite(v) and v + module.eps > 0) for v in variances) or not all(map(math.isfinite, factors)):
        raise NotFiniteError("BatchNorm holds a NaN or infinite weight, or a running variance that is not positive")
    pairs = zip(factors, variances, strict=True)
    return sqrt_up(max(Fraction(g) ** 2 / (Fraction(v) + Fraction(module.eps)) for g, v in pairs))


def batch_norm_program(module: nn.BatchNorm2d, shape: Shape) -> Float64Program:
    """A few operations an entry, whose sizes are those of the input and of the shift."""
    bound = lipschitz_upper_bound(module, shape)
    mean = torch.zeros(()) if module.running_mean is None else module.running_mean
    shift = Growth(float(vector_norm_up(mean.flatten())), 0.0).times(bound).slope
    if module.bias is not None:
        shift += float(vector_norm_up(module.bias))
    root = torch.Size(shape[1:]).numel() ** 0.5
    error = Growth(bound, shift * root).times(gamma(10)).times(ERROR_UP)
    # Where the deviation is divided by first, and the weight makes up for it.
    assert module.running_var is not None
    steepest = 2 / math.sqrt(max(float(in_double(module.running_var).min()) + module.eps, math.ulp(0.0)))
    inner = Growth(1.0, float(vector_norm_up(mean.flatten())) * root).times(max(1.0, steepest))
    return module_program(module, shape, error, inner=inner)


def sequential_bound(module: nn.Sequential, shape: Shape) -> float:
    """The product of the bounds, each at the shape that its module meets."""
    factors = []
    children = list(module)
    for position, child in enumerate(children):
        factors.append(lipschitz_upper_bound(child, shape))
        if position + 1 < len(children):
            shape = output_shape(child, shape)
    return product_up(factors)


def sequential_links(module: nn.Sequential) -> Links:
    """Its modules in order; one that it holds twice runs twice."""
    return [(name, child) for name, child in module._modules.items() if child is not None]
