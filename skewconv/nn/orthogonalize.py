"""Turn the convolutions and linear maps of a model into orthogonal ones, where that is possible."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from skewconv.errors import ArgumentError
from skewconv.nn.linear import OrthogonalLinear
from skewconv.nn.module_tools import replace_module
from skewconv.nn.soc import SOC1d, SOC2d, SOC3d, SOCTranspose1d, SOCTranspose2d, SOCTranspose3d
from skewconv.nn.soc.skew_conv import SkewConv

_CONVOLUTIONS: dict[type[nn.Module], type[SkewConv]] = {
    nn.Conv1d: SOC1d,
    nn.Conv2d: SOC2d,
    nn.Conv3d: SOC3d,
    nn.ConvTranspose1d: SOCTranspose1d,
    nn.ConvTranspose2d: SOCTranspose2d,
    nn.ConvTranspose3d: SOCTranspose3d,
}


@dataclass(frozen=True)
class OrthogonalizeReport:
    """By qualified name, what :func:`orthogonalize` replaced with what, and what it left alone and why."""

    replaced: dict[str, str]
    left_alone: dict[str, str]

    def __str__(self) -> str:
        lines = [f"replaced {len(self.replaced)}, left alone {len(self.left_alone)}"]
        lines += [f"  {name or '(the model)'}: {what}" for name, what in self.replaced.items()]
        lines += [f"  {name or '(the model)'}: left alone: {why}" for name, why in self.left_alone.items()]
        return "\n".join(lines)


class Orthogonalized(NamedTuple):
    """The new model and the report."""

    model: nn.Module
    report: OrthogonalizeReport


def orthogonalize(
    model: nn.Module,
    *,
    linear: bool = True,
    skip: Callable[[str, nn.Module], bool] | None = None,
    inplace: bool = False,
    **options: Any,
) -> Orthogonalized:
    """A copy of a model with SOC layers for its convolutions and orthogonal matrices for its linear layers.

    Shapes stay what they were: a convolution divides the image size by its stride, a transposed one multiplies it, and
    one that does anything else to it is left alone and named in the report.

    The new layers start from their own random filters (an orthogonal map near a given one need not exist); biases,
    dtype, device and training mode are kept. A layer used in several places stays one layer.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3))
    >>> orthogonal, report = orthogonalize(model)
    >>> print(report)
    replaced 1, left alone 1
      0: Conv2d -> SOC2d
      2: left alone: padding=(0, 0) changes the image size: it makes (9, 9) of (11, 11) pixels, ...

    Args:
        model: any module.
        linear: also replace nn.Linear.
        skip: ``skip(name, module)`` is true for layers to leave alone.
        inplace: change the model itself instead of a copy.
        options: for the SOC layers, such as ``eval_tol=1e-5`` or ``series="taylor"``.

    Only exact nn.Conv1d/2d/3d, nn.ConvTranspose1d/2d/3d and nn.Linear are replaced: a subclass may compute something
    else. Transposed layers take no ``output_size``.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model must be an nn.Module, got {type(model).__name__}")
    model = model if inplace else copy.deepcopy(model)
    report = OrthogonalizeReport({}, {})
    made: dict[nn.Module, nn.Module] = {}
    for name, module in list(model.named_modules(remove_duplicate=False)):
        reason = _reason(module, linear)
        if reason is None and skip is not None and skip(name, module):
            reason = "skipped as asked"
        if reason is not None:
            if reason:
                report.left_alone[name] = reason
            continue
        if module not in made:
            made[module] = _replacement(module, options)
        report.replaced[name] = f"{type(module).__name__} -> {type(made[module]).__name__}"
        model = replace_module(model, name, made[module])
    return Orthogonalized(model, report)


def _reason(module: nn.Module, linear: bool) -> str | None:
    """Why a module is left alone; empty if that needs no saying, None if it can be replaced."""
    if type(module) is nn.Linear:
        return None if linear else "linear=False"
    if type(module) not in _CONVOLUTIONS:
        if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
            return f"{type(module).__name__} is not a plain nn.Conv, nn.ConvTranspose or nn.Linear"
        return ""
    assert isinstance(module, nn.modules.conv._ConvNd)
    if module.weight.is_complex():
        return "complex weights; build a SUC layer in its place"
    if module.padding_mode not in ("zeros", "circular"):
        return f"padding_mode={module.padding_mode!r} has no skew Jacobian; 'zeros' and 'circular' have"
    transposed = module.transposed
    size = tuple(s * (d * k + 8) for s, d, k in zip(module.stride, module.dilation, module.kernel_size, strict=True))
    wanted = tuple(n * s if transposed else n // s for n, s in zip(size, module.stride, strict=True))
    x = torch.empty(1, module.in_channels, *size, dtype=module.weight.dtype, device="meta")
    made = tuple(copy.deepcopy(module).to("meta")(x).shape[2:])
    if made == wanted:
        return None
    what = "an orthogonal transposed convolution" if transposed else "an orthogonal convolution"
    return f"padding={module.padding} changes the image size: it makes {made} of {size} pixels, {what} {wanted}"


def _replacement(module: nn.Module, options: dict[str, Any]) -> nn.Module:
    assert isinstance(module, nn.Linear | nn.modules.conv._ConvNd)
    place: dict[str, Any] = {"device": module.weight.device, "dtype": module.weight.dtype}
    new: nn.Module
    if isinstance(module, nn.Linear):
        new = OrthogonalLinear(module.in_features, module.out_features, bias=module.bias is not None, **place)
    else:
        # Of disjoint patches: downsampling and a 1 x 1 convolution, or the way back.
        unpadded = module.padding == "valid" or (module.padding != "same" and not any(map(int, module.padding)))
        patches = module.kernel_size == module.stride and unpadded and set(module.dilation) == {1}
        new = _CONVOLUTIONS[type(module)](
            module.in_channels,
            module.out_channels,
            (1,) * len(module.kernel_size) if patches else module.kernel_size,
            module.stride,
            dilation=module.dilation,
            groups=module.groups,
            bias=module.bias is not None,
            padding_mode=module.padding_mode,  # type: ignore[arg-type]
            **place,
            **options,
        )
    if module.bias is not None:
        new.get_parameter("bias").data.copy_(module.bias.data)
    return new.train(module.training)
