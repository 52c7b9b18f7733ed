"""What an exported network is made of: layer, form, size, multiply-adds."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from skewconv.export import plain_layers as plain


@dataclass(frozen=True)
class LayerRow:
    """One layer that stores numbers: its name in the model, its form in words, what it holds and what it costs."""

    layer: str
    form: str
    numbers: int
    multiply_adds: int


def layer_table(layers: nn.Module, input_shape: tuple[int, ...], model: nn.Module) -> list[LayerRow]:
    """A row for each plain layer that stores numbers, in the order in which they run; multiply-adds of one image.

    Args:
        layers: the plain form of the model.
        input_shape: of one image.
        model: whose names the layers have.
    """
    known = {name for name, module in model.named_modules() if not any(module.children())}
    rows: list[LayerRow] = []

    def note(name: str, module: nn.Module, given: torch.Size, made: torch.Size) -> None:
        numbers = sum(t.numel() for t in (*module.parameters(), *module.buffers()))
        if numbers:
            form, count = _FORMS.get(type(module), _other)(module, tuple(given), tuple(made))
            rows.append(LayerRow(_name(name, known), form, numbers, count))

    handles = []
    for name, module in layers.named_modules():
        # What a residual step holds is counted as one.
        inside = any(isinstance(layers.get_submodule(up), plain.ResidualStep) for up in _above(name))
        if not inside and (type(module) in _FORMS or not any(module.children())):
            handles.append(
                module.register_forward_hook(
                    lambda module, given, made, name=name: note(name, module, given[0].shape[1:], made.shape[1:])
                )
            )
    try:
        with torch.no_grad():
            layers(torch.zeros(1, *input_shape))
    finally:
        for handle in handles:
            handle.remove()
    return rows


def _name(name: str, known: set[str]) -> str:
    """The layer of the model that a plain layer, or a part of its plain form, stands for."""
    return next((up for up in _above(name) if up in known), name)


def _above(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _other(module: nn.Module, given: tuple[int, ...], made: tuple[int, ...]) -> tuple[str, int]:
    return type(module).__name__, math.prod(made)


def _linear(module: nn.Linear, given: tuple[int, ...], made: tuple[int, ...]) -> tuple[str, int]:
    return f"matrix {module.out_features} x {module.in_features}", module.weight.numel()


def _conv(module: nn.Conv2d, given: tuple[int, ...], made: tuple[int, ...]) -> tuple[str, int]:
    kernel = " x ".join(map(str, module.kernel_size))
    around = ", circular" if module.padding_mode == "circular" else ""
    return f"convolution {kernel}{around}", module.weight.numel() * math.prod(made[1:])


def _chain(module: plain.Chain, given: tuple[int, ...], made: tuple[int, ...]) -> tuple[str, int]:
    channels, taps = module.weight.shape[:2], math.prod(module.weight.shape[2:])
    degree, (inputs, outputs) = len(module.coefficients) - 1, module.channels
    widths = [inputs, *(channels[0],) * (degree - 1), outputs] if degree else [0]
    products = sum(a * b for a, b in pairwise(widths)) * taps // module.groups
    around = ", circular" if module.padding_mode == "circular" else ""
    return f"chain of {degree} convolutions{around}", products * math.prod(made[1:])


def _spectral(module: plain.Spectral, given: tuple[int, ...], made: tuple[int, ...]) -> tuple[str, int]:
    transforms = module.forward_table.numel() * (given[0] + made[0])
    return f"{len(module.forward_table) // 2} frequencies", module.weight.numel() + transforms


def _residual(module: plain.ResidualStep, given: tuple[int, ...], made: tuple[int, ...]) -> tuple[str, int]:
    return "two convolutions", (module.there.weight.numel() + module.back.weight.numel()) * math.prod(made[1:])


_FORMS: dict[type[nn.Module], Callable[[Any, tuple[int, ...], tuple[int, ...]], tuple[str, int]]] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv,
    plain.Chain: _chain,
    plain.Spectral: _spectral,
    plain.ResidualStep: _residual,
}
