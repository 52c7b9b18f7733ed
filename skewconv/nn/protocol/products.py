"""The rounding error of sums of products: matrices and filters in float64.

A sum of n products computed in any order errs by at most gamma_n sum |w| |x| (Higham, Accuracy and Stability of
Numerical Algorithms, Lemma 3.1), so a linear layer errs by gamma_n || |W| || ||x||.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from skewconv.choices import PaddingMode
from skewconv.nn.protocol.program import Float64Program, Growth, proven_program
from skewconv.nn.protocol.rules import Shape
from skewconv.ops.convolution import convolve
from skewconv.ops.downsample import invertible_downsample
from skewconv.rigor import MILLIONS_UP, absolute_norm_upper_bound, gamma, spectral_norm_upper_bound, vector_norm_up


def product_error(weight: Tensor, norm: float, bias: Tensor | None, pixels: int) -> Growth:
    """gamma_n (|| |W| || ||x|| + ||bias||), the bias being spread over all sums.

    Args:
        weight: (rows, ...), each row the weights of one sum.
        norm: of the map with the absolute weights.
        bias: one entry a row, or one for as many.
        pixels: how many sums each row makes.
    """
    g = gamma(weight[0].numel() + 2)
    size = spread_norm_up(bias, len(weight) * pixels)
    return Growth(norm, size).times(g).times(MILLIONS_UP)


def spread_norm_up(bias: Tensor | None, sums: int) -> float:
    """The norm of a bias that is added to so many sums, as often as it has to be repeated for that."""
    return 0.0 if bias is None else float(vector_norm_up(bias.flatten())) * math.sqrt(sums / bias.numel()) * MILLIONS_UP


def matrix_program(weight: Tensor, bias: Tensor | None, input_shape: Shape) -> Float64Program:
    """x -> W x + b on the last axis, for the matrix as it is, not for the one it should be: (outputs, inputs)."""
    weight, bias = weight.detach(), None if bias is None else bias.detach()
    error = product_error(weight, absolute_norm_upper_bound(weight), bias, torch.Size(input_shape[:-1]).numel())
    bound = spectral_norm_upper_bound(weight)
    return proven_program(
        lambda x: F.linear(x, weight, bias), input_shape, bound, error, weight.device, (weight, bias), weight
    )


def filter_program(
    weight: Tensor,
    bias: Tensor | None,
    input_shape: Shape,
    lipschitz: float,
    *,
    stride: int = 1,
    padding_mode: PaddingMode = "circular",
    convolution: Callable[[Tensor], Tensor] | None = None,
) -> Float64Program:
    """psi, then the convolution with a filter (c_out, c_in stride^2, k, k) as it is, then the bias.

    Args:
        convolution: another way to sum the same products; PyTorch's own by default.
    """
    weight, bias = weight.detach(), None if bias is None else bias.detach().view(-1, 1, 1)

    def run(x: Tensor) -> Tensor:
        z = invertible_downsample(x, (stride, stride))
        y = convolve(z, weight, padding_mode=padding_mode) if convolution is None else convolution(z)
        return y if bias is None else y + bias

    pixels = torch.Size(input_shape[1:]).numel() // stride**2
    error = product_error(weight, absolute_norm_upper_bound(weight), bias, pixels)
    return proven_program(run, input_shape, lipschitz, error, weight.device, (weight, bias))
