"""A frozen model whose weights are numbers of float16, with everything proven anew for these numbers."""

import copy

import torch
from torch import Tensor, nn

from skewconv.errors import ExportError
from skewconv.frozen import FrozenModel
from skewconv.nn.gains import gain_bounds
from skewconv.nn.primitives import Primitive, SkewExponential
from skewconv.ops.norms import norm_upper_bound_at
from skewconv.ops.polynomials import polynomial


def in_half_precision(frozen: FrozenModel) -> FrozenModel:
    """The model with each weight rounded to float16, and still computing in float32: another function, proven itself.

    Filters, matrices and matrices of frequencies are rounded. What is small stays as it is: biases, angles, the
    transforms, the mean and deviation of the images.
    """
    model = copy.deepcopy(frozen.model)
    for name, module in list(model.named_modules()):
        if isinstance(module, Primitive):
            module.weight = rounded(module.weight, name)
            if isinstance(module, SkewExponential):
                _widen_interval(module)
            gain_bounds(module)
        elif isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            module.weight.data = rounded(module.weight.data, name)
    return FrozenModel(model, frozen.input_shape, frozen.tol)


def rounded(weight: Tensor, name: str) -> Tensor:
    """The nearest numbers of float16, in the dtype of the weight."""
    half = weight.detach().to(torch.float16)
    if not bool(torch.isfinite(half).all()):
        largest = torch.finfo(torch.float16).max
        raise ExportError(f"'{name}' has weights beyond {largest:g}, which float16 cannot hold: store them in float32")
    return half.to(weight.dtype)


def _widen_interval(module: SkewExponential) -> None:
    """Where the filter is larger than before, the polynomial's interval grows."""
    g, old = module.geometry, module.polynomial
    norm = norm_upper_bound_at(module.weight, module.image_size, g.padding_mode, dilation=g.dilation, groups=g.groups)
    if norm > old.norm_bound:
        # Another proof of the same norm, by other means, shall find it in the interval too.
        wider = polynomial(norm * (1 + 1e-9), old.degree, old.series)
        module.polynomial = wider.non_expansive() if old.gain[1] <= 1 else wider
