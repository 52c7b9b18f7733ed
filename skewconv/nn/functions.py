"""Functions of PyTorch that are layers of PyTorch: what is known of the layer is known of the function."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LayerOfFunction(NamedTuple):
    """The layer's class, and the function's arguments after the first, in their order, by the layer's names."""

    kind: type[nn.Module]
    arguments: tuple[str, ...] = ()


_RELU, _TANH, _SIGMOID = (LayerOfFunction(kind, ("inplace",)) for kind in (nn.ReLU, nn.Tanh, nn.Sigmoid))
_AVG = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")
_MAX = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")

_LAYERS: dict[Any, LayerOfFunction] = {
    **dict.fromkeys((torch.relu, torch.relu_, F.relu, "relu", "relu_"), _RELU),
    **dict.fromkeys((torch.tanh, F.tanh, "tanh"), _TANH),
    **dict.fromkeys((torch.sigmoid, F.sigmoid, "sigmoid"), _SIGMOID),
    F.relu6: LayerOfFunction(nn.ReLU6, ("inplace",)),
    F.hardtanh: LayerOfFunction(nn.Hardtanh, ("min_val", "max_val", "inplace")),
    F.leaky_relu: LayerOfFunction(nn.LeakyReLU, ("negative_slope", "inplace")),
    F.elu: LayerOfFunction(nn.ELU, ("alpha", "inplace")),
    F.celu: LayerOfFunction(nn.CELU, ("alpha", "inplace")),
    F.selu: LayerOfFunction(nn.SELU, ("inplace",)),
    F.silu: LayerOfFunction(nn.SiLU, ("inplace",)),
    F.gelu: LayerOfFunction(nn.GELU, ("approximate",)),
    F.softsign: LayerOfFunction(nn.Softsign),
    F.logsigmoid: LayerOfFunction(nn.LogSigmoid),
    F.avg_pool1d: LayerOfFunction(nn.AvgPool1d, _AVG),
    F.avg_pool2d: LayerOfFunction(nn.AvgPool2d, (*_AVG, "divisor_override")),
    F.avg_pool3d: LayerOfFunction(nn.AvgPool3d, (*_AVG, "divisor_override")),
    **dict.fromkeys((F.max_pool1d, torch.max_pool1d), LayerOfFunction(nn.MaxPool1d, _MAX)),
    **dict.fromkeys((F.max_pool2d, torch.max_pool2d), LayerOfFunction(nn.MaxPool2d, _MAX)),
    **dict.fromkeys((F.max_pool3d, torch.max_pool3d), LayerOfFunction(nn.MaxPool3d, _MAX)),
    F.adaptive_avg_pool1d: LayerOfFunction(nn.AdaptiveAvgPool1d, ("output_size",)),
    F.adaptive_avg_pool2d: LayerOfFunction(nn.AdaptiveAvgPool2d, ("output_size",)),
    F.adaptive_avg_pool3d: LayerOfFunction(nn.AdaptiveAvgPool3d, ("output_size",)),
}
_DROPOUTS: set[Any] = {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.feature_alpha_dropout, F.alpha_dropout}
_CONVOLUTIONS: dict[Any, type[nn.Module]] = {
    **dict.fromkeys((F.conv1d, torch.conv1d), nn.Conv1d),
    **dict.fromkeys((F.conv2d, torch.conv2d), nn.Conv2d),
    **dict.fromkeys((F.conv3d, torch.conv3d), nn.Conv3d),
}
_CONVOLUTION_ARGUMENTS = ("weight", "bias", "stride", "padding", "dilation", "groups")


def layer_of_function(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> nn.Module | None:
    """The layer that a call of a function or a method stands for; None if it is none, or is called in another way.

    >>> layer_of_function(F.max_pool2d, (torch.zeros(1, 1, 4, 4), 2), {"stride": 1})
    MaxPool2d(kernel_size=2, stride=1, padding=0, dilation=1, ceil_mode=False)

    Args:
        target: the function, or the name of the method.
        args, kwargs: of the call, the input first.
    """
    if not args:
        return None
    try:
        if target in _DROPOUTS:
            given = _named(("p", "training", "inplace"), args[1:], kwargs)
            return nn.Identity() if given.get("training", True) is False else None
        if target in _CONVOLUTIONS:
            return _convolution(_CONVOLUTIONS[target], **_named(_CONVOLUTION_ARGUMENTS, args[1:], kwargs))
        if target is F.linear:
            return _linear(**_named(("weight", "bias"), args[1:], kwargs))
        if target in _LAYERS:
            given = _named(_LAYERS[target].arguments, args[1:], kwargs)
            return _LAYERS[target].kind(**{name: value for name, value in given.items() if name != "inplace"})
    except (TypeError, ValueError):
        return None  # an argument that the layer does not have
    return None


def _named(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    if len(args) > len(names):
        raise TypeError("more arguments than there are names")
    given: dict[str, Any] = dict(zip(names, args, strict=False))
    if given.keys() & kwargs.keys():
        raise TypeError("an argument is given twice")
    return {**given, **kwargs}


def _linear(weight: Tensor, bias: Tensor | None = None) -> nn.Module:
    outputs, inputs = weight.shape
    return _with(nn.Linear(inputs, outputs, bias is not None, weight.device, weight.dtype), weight, bias)


def _convolution(
    kind: Callable[..., nn.Module], weight: Tensor, bias: Tensor | None = None, groups: int = 1, **options: Any
) -> nn.Module:
    options |= {"groups": groups, "bias": bias is not None, "device": weight.device, "dtype": weight.dtype}
    layer = kind(weight.shape[1] * groups, weight.shape[0], tuple(weight.shape[2:]), **options)
    return _with(layer, weight, bias)


def _with(layer: nn.Module, weight: Tensor, bias: Tensor | None) -> nn.Module:
    """The layer with these tensors."""
    given = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    layer.load_state_dict(given)
    return layer.eval().requires_grad_(False)
