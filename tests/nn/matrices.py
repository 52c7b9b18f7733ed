"""Oracles: the matrix of a layer, and its singular values."""

import numpy as np
import torch
from torch import nn

from skewconv.ops.dense_matrices import dense_matrix


def dense(layer: nn.Module, shape: tuple[int, ...]) -> np.ndarray:
    """The matrix of the layer without its bias, in float64 from what the layer computes in its own precision."""
    parameter = next(layer.parameters())
    bias = layer.bias.detach().view(-1, 1, 1) if layer.bias is not None else 0
    with torch.no_grad():
        matrix = dense_matrix(lambda x: (layer(x.to(parameter.dtype)) - bias).double(), shape)
    return matrix.numpy()


def singular_values(matrix: np.ndarray) -> np.ndarray:
    return np.linalg.svd(matrix, compute_uv=False)
