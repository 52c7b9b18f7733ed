"""Convolutions that are no exponentials: PyTorch's own, BCOP by its filter, Cayley by one matrix a frequency."""

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from skewconv.errors import UnboundedModuleError
from tests.oracles.second_path.layer import CONVOLUTIONS, Layer
from tests.oracles.second_path.norms import MARGIN, grid_norm
from tests.oracles.second_path.pixels import bordered, unshuffled


def convolution(name: str, module: Any, shape: tuple[int, ...]) -> Layer:
    """PyTorch's convolution, bounded on a torus as large as the image, and the kernel too if zeros surround it.

    Fewer outputs, by a stride or by cropping, only restrict it.
    """
    if module.padding_mode not in ("zeros", "circular"):
        raise UnboundedModuleError(f"certificates of '{name}' cannot be checked: it pads by {module.padding_mode!r}")
    weight, axes = module.weight.detach(), module.weight.dim() - 2
    reach = [d * (k - 1) for d, k in zip(module.dilation, weight.shape[2:], strict=True)]
    # (before, after) from the last axis to the first, as the layer itself reads them.
    pads = list(module._reversed_padding_repeated_twice)
    circular = module.padding_mode == "circular"
    if circular and any(a + b > r for a, b, r in zip(pads[::2], pads[1::2], reversed(reach), strict=True)):
        raise UnboundedModuleError(f"certificates of '{name}' cannot be checked: its circular padding repeats outputs")
    torus = tuple(n if circular else n + r for n, r in zip(shape[1:], reach, strict=True))
    norm = max(grid_norm(block.numpy(), torus, tuple(module.dilation)) for block in weight.chunk(module.groups))

    def run(x: Tensor) -> Tensor:
        x = F.pad(x, pads, mode="circular") if circular else F.pad(x, pads)
        return CONVOLUTIONS[axes](x, weight, module.bias, module.stride, 0, module.dilation, module.groups)

    return Layer(run, norm)


def bcop(name: str, module: Any, shape: tuple[int, ...]) -> Layer:
    """BCOP: a circular convolution, whose symbol W has W^H W = 1 but for E: ||W||^2 <= 1 + sup ||E||.

    E has taps 1 - k to k - 1: its supremum is at most its maximum on a grid with Riesz's margin.
    """
    weight = module.weight.detach()
    k, n = weight.shape[-1], 8 * weight.shape[-1]
    symbol = np.fft.fft2(weight.numpy(), s=(n, n)).transpose(2, 3, 0, 1)
    tall = symbol if symbol.shape[2] >= symbol.shape[3] else symbol.swapaxes(2, 3).conj()
    defect = tall.swapaxes(2, 3).conj() @ tall - np.eye(tall.shape[3])
    largest = float(np.linalg.norm(defect, axis=(2, 3)).max()) / math.cos(math.pi * (k - 1) / n) ** 2
    pad = ((k - 1) // 2, k // 2)

    def run(x: Tensor) -> Tensor:
        x = bordered(unshuffled(x, (module.stride,) * 2), (*pad, *pad), circular=True)
        y = F.conv2d(x, weight)
        return y if module.bias is None else y + module.bias.view(-1, 1, 1)

    return Layer(run, math.sqrt(1 + largest) * MARGIN)


def cayley(name: str, module: Any, shape: tuple[int, ...]) -> Layer:
    """Cayley: one matrix a frequency, through PyTorch's transforms."""
    matrices = module.frequency_matrices(shape)
    norm = float(np.linalg.norm(matrices.numpy(), 2, axis=(2, 3)).max()) * MARGIN

    def run(x: Tensor) -> Tensor:
        x = unshuffled(x, (module.stride,) * 2)
        spectrum = torch.einsum("uvoi,niuv->nouv", matrices, torch.fft.rfft2(x))
        y: Tensor = torch.fft.irfft2(spectrum, s=x.shape[2:])
        return y if module.bias is None else y + module.bias.view(-1, 1, 1)

    return Layer(run, norm)
