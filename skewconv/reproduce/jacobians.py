"""The largest Jacobian among a network's trained SOC layers: measured, bounded, and the error of the series there."""

from typing import Any

import torch
from torch import nn

from skewconv.nn import SOC2d
from skewconv.nn.module_tools import evaluating, recording_shapes
from skewconv.ops import norm_estimate, norm_upper_bound, truncation_error

# 12 terms, identity included: what the paper evaluates with.
_PAPER_EVAL_DEGREE = 11


def largest_jacobian(model: nn.Module, input_shape: tuple[int, ...]) -> dict[str, Any]:
    """The paper's "real normalisation" (Section 7): power iteration at the size of the image each layer really sees.

    That is an estimate from below, so what is proved rests on the symbol bound of the same filters.

    >>> model = nn.Sequential(SOC2d(3, 4, 3), nn.Flatten())
    >>> found = largest_jacobian(model, (3, 8, 8))
    >>> found["layers"], found["norm_estimate"] <= found["norm_upper_bound"] <= 2.1
    (1, True)

    Args:
        model: images to logits; read in eval mode, and put back.
        input_shape: (C, H, W) of an image.
    """
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, SOC2d)}
    with evaluating(model), torch.no_grad(), recording_shapes(layers) as met:
        model(torch.zeros(1, *input_shape))
        seen = [_norms(layers[name], shapes[0].given) for name, shapes in met.items()]
    estimates, bounds, own = zip(*seen, strict=True)
    largest = max(bounds)
    return {
        "layers": len(seen),
        "norm_estimate": max(estimates),
        "norm_upper_bound": largest,
        "truncation_error": max(own),
        "truncation_error_taylor_12_terms": truncation_error(largest, _PAPER_EVAL_DEGREE, "taylor"),
    }


def _norms(layer: SOC2d, shape: tuple[int, ...]) -> tuple[float, float, float]:
    """The estimate of the norm at the layer's own size, its upper bound, and the layer's own truncation error."""
    size = layer.size_met(shape)
    with torch.no_grad():
        weight = layer.weight
        estimate = norm_estimate(weight, size, layer.padding_mode, dilation=layer.dilation, groups=layer.groups)
        return estimate, norm_upper_bound(weight, groups=layer.groups), layer.polynomial().truncation_error
