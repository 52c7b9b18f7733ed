"""Frozen layers, for the map that they store: one matrix, one convolution, or one matrix a frequency."""

import math
from typing import Any

import torch
from torch import Tensor

from skewconv.errors import UnboundedModuleError
from tests.oracles.second_path.layer import CONVOLUTIONS, Layer
from tests.oracles.second_path.norms import grid_norm, spectral_norm
from tests.oracles.second_path.pixels import bordered, shuffled, unshuffled

_LARGEST_MATRIX = 4096


def dense(name: str, module: Any, shape: tuple[int, ...]) -> Layer:
    """A matrix between all entries."""
    matrix = module.weight.detach()

    def run(x: Tensor) -> Tensor:
        return _with_bias((x.flatten(1) @ matrix.T).unflatten(1, module.output_shape), module.bias)

    return Layer(run, spectral_norm(matrix.numpy()))


def frozen_convolution(name: str, module: Any, shape: tuple[int, ...]) -> Layer:
    """A filter of odd sizes after psi, on the torus of the image, with room for the kernel if zeros surround it."""
    weight, circular = module.weight.detach(), module.geometry.padding_mode == "circular"
    kernel, axes = weight.shape[2:], weight.dim() - 2
    size = [n // s for n, s in zip(shape[1:], module.stride, strict=True)]
    torus = tuple(n if circular else n + k - 1 for n, k in zip(size, kernel, strict=True))

    def run(x: Tensor) -> Tensor:
        pads = [r for k in reversed(kernel) for r in (k // 2, k // 2)]
        x = unshuffled(x, tuple(module.stride))
        x = bordered(x, pads, circular=circular)
        return _with_bias(CONVOLUTIONS[axes](x, weight), module.bias)

    return Layer(run, grid_norm(weight.numpy(), torus, (1,) * axes))


def spectral(name: str, module: Any, shape: tuple[int, ...]) -> Layer:
    """Tables and matrices as they are stored, bounded by the matrix of the whole map, if that is of a size to build."""
    entries = math.prod(shape)
    if entries > _LARGEST_MATRIX:
        raise UnboundedModuleError(
            f"certificates of '{name}' (FrozenSpectral) cannot be checked: it takes {entries} entries, and its matrix "
            f"is built for up to {_LARGEST_MATRIX}; check the model before it was frozen"
        )
    table, groups = module.table.detach(), module.groups
    alone = len(module.real_weight) // groups

    def moved(waves: Tensor, weight: Tensor, parts: int) -> Tensor:
        matrices = weight.detach().view(len(weight) // groups, groups, *weight.shape[1:])
        split = waves.unflatten(1, (len(matrices), parts)).unflatten(3, (groups, -1))
        made = torch.einsum("nfgi,fgio->nfgo", split.permute(0, 1, 3, 2, 4).flatten(3), matrices)
        return made.unflatten(3, (parts, -1)).permute(0, 1, 3, 2, 4).flatten(3).flatten(1, 2)

    def linear(x: Tensor) -> Tensor:
        x = x if module.upsamples else unshuffled(x, module.stride)
        waves = torch.einsum("fp,ncp->nfc", table, x.flatten(2))
        made = torch.cat([moved(waves[:, :alone], module.real_weight, 1), moved(waves[:, alone:], module.weight, 2)], 1)
        y = torch.einsum("fp,nfc->ncp", table, made).unflatten(2, x.shape[2:])
        return shuffled(y, module.stride) if module.upsamples else y

    basis = torch.eye(entries, dtype=torch.float64).view(entries, *shape)
    matrix = torch.cat([linear(part).flatten(1) for part in basis.split(256)])
    return Layer(lambda x: _with_bias(linear(x), module.bias), spectral_norm(matrix.numpy()))


def _with_bias(y: Tensor, bias: Tensor | None) -> Tensor:
    return y if bias is None else y + bias.view(-1, *(1,) * (y.dim() - 2))
