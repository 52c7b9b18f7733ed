"""A frozen model whose weights are numbers of float16, with everything proven anew for these numbers."""

import copy

import torch
from torch import Tensor, nn

from skewconv.errors import ExportError
from skewconv.frozen import FrozenModel
from skewconv.nn.frozen_layers import FrozenLayer
from skewconv.nn.module_tools import replace_module


def in_half_precision(frozen: FrozenModel) -> FrozenModel:
    """The model with each weight rounded to float16, and still computing in float32: another function, proven itself.

    Filters, matrices and matrices of frequencies are rounded. What is small stays as it is: biases, angles, the
    transforms, the mean and deviation of the images.
    """
    model = copy.deepcopy(frozen.model)
    for name, module in list(model.named_modules()):
        if isinstance(module, FrozenLayer):
            model = replace_module(model, name, module.with_weight(rounded(module.get_buffer("weight"), name)).eval())
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
