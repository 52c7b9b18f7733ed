"""A convolution around a torus, tap by tap or frequency by frequency, whichever takes fewer multiply-adds."""

import math

import torch
from torch import Tensor

from skewconv.ops.convolution import convolve
from skewconv.ops.filters import odd_filter
from skewconv.ops.fourier import (
    filter_transform_table,
    inverse_transform_table,
    kept_table,
    parts_side_by_side,
    transform_table,
)
from skewconv.ops.torch_modes import autocasting, tracing

_DTYPES = (torch.float32, torch.float64)


def circular_convolve(x: Tensor, weight: Tensor) -> Tensor:
    """y[i] = sum_t weight[t] x[i + t] with indices around the image: (n, c, h, w), (o, c, k, l) -> (n, o, h, w).

    >>> import torch
    >>> x, weight = torch.randn(9, 8, 4, 4), torch.randn(6, 8, 3, 3)
    >>> torch.testing.assert_close(circular_convolve(x, weight), convolve(x, weight, padding_mode="circular"))
    """
    if _frequencies_are_cheaper(x, weight):
        return convolve_by_frequencies(x, odd_filter(weight))
    return convolve(x, weight, padding_mode="circular")


def convolve_by_frequencies(x: Tensor, weight: Tensor) -> Tensor:
    """The same by real products: transforms of images and filter, one product a frequency, and the way back.

    Real and imaginary part of a frequency lie side by side, so that one product has all four of theirs::

        (2 n, c) (c, 2 o) = | x_re w_re   x_re w_im |      y_re = x_re w_re - x_im w_im
                            | x_im w_re   x_im w_im |      y_im = x_re w_im + x_im w_re

    Args:
        x: (n, c, h, w), real.
        weight: (o, c, k, l) with odd k and l.
    """
    (n, channels, *size), outputs, kernel = x.shape, weight.shape[0], tuple(weight.shape[2:])
    image_table = kept_table(_image_table, (tuple(size),), x)
    filter_table = kept_table(_filter_table, (tuple(size), kernel), x)
    inverse_table = kept_table(inverse_transform_table, (tuple(size),), x)
    images = (image_table @ x.reshape(n * channels, -1).mT).view(-1, 2 * n, channels)
    matrices = (filter_table @ weight.reshape(outputs * channels, -1).mT).view(-1, 2 * outputs, channels)
    products = torch.bmm(images, matrices.mT).view(-1, 2, n, 2, outputs)
    real = products[:, 0, :, 0] - products[:, 1, :, 1]
    imaginary = products[:, 0, :, 1] + products[:, 1, :, 0]
    spectrum = torch.stack([real, imaginary]).view(-1, n * outputs)
    return (spectrum.mT @ inverse_table.mT).view(n, outputs, *size)


def _frequencies_are_cheaper(x: Tensor, weight: Tensor) -> bool:
    """On the CPU, where it was measured: with fewer multiply-adds they took less time at every shape that was tried."""
    if x.device.type != "cpu" or x.dtype not in _DTYPES or autocasting(x.device) or tracing() or len(x) == 0:
        return False
    (n, channels, *size), outputs, taps = x.shape, weight.shape[0], math.prod(weight.shape[2:])
    pixels, frequencies = math.prod(size), math.prod(size[:-1]) * (size[-1] // 2 + 1)
    transforms = 2 * frequencies * (n * pixels * (channels + outputs) + taps * channels * outputs)
    by_frequencies = transforms + 4 * frequencies * n * channels * outputs
    return by_frequencies < n * pixels * taps * channels * outputs


def _image_table(size: tuple[int, ...]) -> Tensor:
    return parts_side_by_side(transform_table(size))


def _filter_table(size: tuple[int, ...], kernel: tuple[int, ...]) -> Tensor:
    return parts_side_by_side(filter_transform_table(size, kernel, (1,) * len(kernel)))
