"""Pools, bounded on the image at hand."""

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from skewconv.errors import UnboundedModuleError
from tests.oracles.second_path.layer import Layer
from tests.oracles.second_path.norms import spectral_norm

_AVERAGES: dict[int, Any] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
_MAXIMA: dict[int, Any] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_ADAPTIVE: dict[int, Any] = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}


def average(name: str, module: Any, shape: tuple[int, ...]) -> Layer:
    """The same matrix for every channel: its norm is that of one channel."""
    options = [module.kernel_size, module.stride, module.padding, module.ceil_mode, module.count_include_pad]
    if getattr(module, "divisor_override", None) is not None:
        options.append(module.divisor_override)
    return _linear(lambda x: _AVERAGES[_axes(module)](x, *options), shape, _axes(module))


def adaptive(name: str, module: Any, shape: tuple[int, ...]) -> Layer:
    """As :func:`average`, with windows that fit."""
    return _linear(lambda x: _ADAPTIVE[_axes(module)](x, module.output_size), shape, _axes(module))


def _axes(module: Any) -> int:
    """How many axes the windows have: images may come without channels."""
    return int(type(module).__name__[-2])


def _linear(run: Any, shape: tuple[int, ...], axes: int) -> Layer:
    size = math.prod(shape[-axes:])
    images = torch.eye(size, dtype=torch.float64).view(size, 1, *shape[-axes:])
    return Layer(run, spectral_norm(run(images).flatten(1).numpy()))


def maximum(name: str, module: Any, shape: tuple[int, ...]) -> Layer:
    """Each output moves no further than one input of its window, and an input is in so many windows at most."""
    if module.return_indices:
        raise UnboundedModuleError(f"certificates of '{name}' cannot be checked: it returns indices")
    axes = _axes(module)
    options = [module.kernel_size, module.stride, module.padding, module.dilation, module.ceil_mode]
    run = _MAXIMA[axes]
    outputs = run(torch.zeros(1, *shape, dtype=torch.float64), *options).shape[-axes:]
    each = [value if isinstance(value, tuple) else (value,) * axes for value in options[:4]]
    windows = 1
    for n, out, k, s, p, d in zip(shape[-axes:], outputs, *each, strict=True):
        counts = np.zeros(n, dtype=int)
        for start in range(out):
            read = [start * s - p + t * d for t in range(k)]
            counts[[place for place in read if 0 <= place < n]] += 1
        windows *= int(counts.max())

    def pooled(x: Tensor) -> Tensor:
        result: Tensor = run(x, *options)
        return result

    return Layer(pooled, math.sqrt(windows) * (1 + 1e-12))
