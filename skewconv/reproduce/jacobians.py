"""The largest Jacobian among a network's trained SOC layers: measured, bounded, and the error of the series there."""

from typing import Any

import torch
from torch import Tensor, nn

from skewconv.nn import SOC2d
from skewconv.ops import norm_estimate, norm_upper_bound, truncation_error

# 12 terms, identity included: what the paper evaluates with.
_PAPER_EVAL_DEGREE = 11


def largest_jacobian(model: nn.Module, input_shape: tuple[int, ...]) -> dict[str, Any]:
    """The paper's "real normalisation" (Section 6.3): power iteration at the size of the image each layer really sees.

    That is an estimate from below, so what is proved rests on the symbol bound of the same filters.

    >>> model = nn.Sequential(SOC2d(3, 4, 3), nn.Flatten())
    >>> found = largest_jacobian(model, (3, 8, 8))
    >>> found["layers"], found["norm_estimate"] <= found["norm_upper_bound"] <= 2.1
    (1, True)

    Args:
        model: images to logits; read in eval mode, and put back.
        input_shape: (C, H, W) of an image.
    """
    seen = _inputs(model, input_shape)
    estimates, bounds, own = [], [], []
    with torch.no_grad():
        for layer, shape in seen.items():
            size = tuple(side // stride for side, stride in zip(shape[1:], layer.stride, strict=True))
            weight = layer.weight
            estimates.append(
                norm_estimate(weight, size, layer.padding_mode, dilation=layer.dilation, groups=layer.groups)
            )
            bounds.append(norm_upper_bound(weight, groups=layer.groups))
            own.append(layer.polynomial().truncation_error)
    largest = max(bounds)
    return {
        "layers": len(seen),
        "norm_estimate": max(estimates),
        "norm_upper_bound": largest,
        "truncation_error": max(own),
        "truncation_error_taylor_12_terms": truncation_error(largest, _PAPER_EVAL_DEGREE, "taylor"),
    }


def _inputs(model: nn.Module, input_shape: tuple[int, ...]) -> dict[SOC2d, tuple[int, ...]]:
    """The shape of the image that each SOC layer sees."""
    seen: dict[SOC2d, tuple[int, ...]] = {}

    def remember(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, SOC2d)
        seen[layer] = tuple(given[0].shape[1:])

    was_training = model.training
    handles = [layer.register_forward_pre_hook(remember) for layer in model.modules() if isinstance(layer, SOC2d)]
    try:
        with torch.no_grad():
            model.eval()(torch.zeros(1, *input_shape))
    finally:
        model.train(was_training)
        for handle in handles:
            handle.remove()
    return seen
