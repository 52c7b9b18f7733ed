"""Layers of the neighbours: AOL by the symbol of its filter, SLL and CPL by that of their residual step."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.oracles.second_path.chain import kind_of
from tests.oracles.second_path.layer import Layer
from tests.oracles.second_path.norms import Array, grid_norm
from tests.oracles.second_path.pixels import bordered, unshuffled


def aol(name: str, module: Any, shape: tuple[int, ...]) -> Layer:
    """AOL: a convolution with the filter as it is, whose norm comes from its symbol on the image at hand."""
    weight = module.weight.detach()

    def run(x: Tensor) -> Tensor:
        y = _convolution(unshuffled(x, (module.stride,) * 2), weight, module.padding_mode)
        return y if module.bias is None else y + module.bias.view(-1, 1, 1)

    return Layer(run, _norm_on_image(weight.numpy(), module, shape))


def residual(name: str, module: Any, shape: tuple[int, ...]) -> Layer:
    """SLL and CPL: x - 2 W S relu(W^T x + b), with W by PyTorch's transposed convolution.

    With m = ||W S^(1/2)|| its Jacobians I - 2 W S D W^T, 0 <= D <= 1, are between I - 2 m^2 and I: max(1, 2 m^2 - 1).
    """
    weight, scale = module.weight.detach(), module.scale.detach()
    kept = module.output_shape[0] if kind_of(module) == "ResidualStep" else module.out_channels
    wide = scale.expand(len(weight)).view(-1, 1, 1, 1)
    norm = _norm_on_image((weight * wide.sqrt()).numpy(), module, shape)

    def run(x: Tensor) -> Tensor:
        x = unshuffled(x, (module.stride,) * 2)
        z = x.new_zeros(len(x), weight.shape[1], *x.shape[2:])
        z[:, : x.shape[1]] = x
        hidden = _convolution(z, weight, module.padding_mode)
        if module.bias is not None:
            hidden = hidden + module.bias.view(-1, 1, 1)
        moved = 2 * wide[:, 0] * hidden.clamp_min(0)
        return (z - _transposed_convolution(moved, weight, module.padding_mode))[:, :kept]

    return Layer(run, max(1.0, 2 * norm**2 - 1))


def _norm_on_image(weight: Array, module: Any, shape: tuple[int, ...]) -> float:
    """||J|| at most: on a torus as large as the image after psi, and the kernel too if zeros surround it."""
    room = 0 if module.padding_mode == "circular" else weight.shape[-1] - 1
    return grid_norm(weight, (shape[1] // module.stride + room, shape[2] // module.stride + room), (1, 1))


def _border(weight: Tensor) -> tuple[int, int]:
    """What "same" padding adds before and after an axis of a square kernel."""
    k = weight.shape[-1]
    return (k - 1) // 2, k // 2


def _convolution(x: Tensor, weight: Tensor, padding_mode: str) -> Tensor:
    return F.conv2d(bordered(x, _border(weight) * 2, circular=padding_mode == "circular"), weight)


def _transposed_convolution(y: Tensor, weight: Tensor, padding_mode: str) -> Tensor:
    """The adjoint: every output spread over what it was read from, and what fell past the border cut off or folded."""
    before, (h, w) = _border(weight)[0], y.shape[2:]
    wide = F.conv_transpose2d(y, weight)
    if padding_mode != "circular":
        return wide[:, :, before : before + h, before : before + w]
    for axis, n in ((2, h), (3, w)):
        length = wide.shape[axis]
        middle = wide.narrow(axis, 0, n).clone().zero_()
        wide = middle.index_add_(axis, (torch.arange(length, device=y.device) - before) % n, wide)
    return wide
