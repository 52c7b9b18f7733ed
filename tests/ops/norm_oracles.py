"""What bounds and estimates of norms are held against: the dense matrix, and the symbol by FFT."""

import numpy as np
import torch
from torch import Tensor

from skewconv.ops.dense_matrices import dense_jacobian

METHODS = ["symbol", "gram", "fantastic-four"]


PADDINGS = ["zeros", "circular"]


def dense_norm(weight: Tensor, size, padding_mode="zeros", dilation=1, groups=1) -> float:
    return float(np.linalg.norm(dense_jacobian(weight, size, padding_mode, dilation, groups).numpy(), 2))


def symbol_maximum(weight: Tensor, points: int) -> float:
    """The norm on a circular image of the given size, a lower bound of the supremum: an FFT and an SVD."""
    axes = tuple(range(2, weight.dim()))
    symbols = torch.fft.fftn(weight, s=(points,) * len(axes), dim=axes)
    return float(torch.linalg.matrix_norm(symbols.flatten(2).permute(2, 0, 1), 2).max())
