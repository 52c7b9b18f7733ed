"""Norms by LAPACK, scaled by powers of two before anything is squared, with a margin for their errors."""

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

MARGIN = 1 + 1e-9
_LEAST = 5e-324


def spectral_norm(matrix: Array) -> float:
    """||A|| from the eigenvalues of the smaller Gram matrix; only the zero matrix has norm zero.

    >>> tiny = np.full((2, 2), 2.0**-560)
    >>> spectral_norm(tiny) >= 2.0**-559, spectral_norm(np.zeros((2, 2)))
    (True, 0.0)
    """
    if not np.isfinite(matrix).all():
        return math.nan
    _, top = math.frexp(float(np.abs(matrix).max(initial=0.0)))
    scaled = np.ldexp(matrix, -top)
    if not scaled.any():
        return 0.0
    gram = scaled.T @ scaled if scaled.shape[0] >= scaled.shape[1] else scaled @ scaled.T
    return _scaled_back(math.sqrt(max(0.0, float(np.linalg.eigvalsh(gram)[-1]))) * MARGIN, top)


def row_distances(matrix: Array, row: int) -> list[float]:
    """||w_row - w_i|| for every other row i, in their order; equal rows alone are at distance zero."""
    found = []
    for other in np.delete(np.arange(len(matrix)), row):
        difference = matrix[row] - matrix[other]
        _, top = math.frexp(float(np.abs(difference).max(initial=0.0)))
        found.append(_scaled_back(float(np.linalg.norm(np.ldexp(difference, -top))) * MARGIN, top))
    return found


def _scaled_back(value: float, exponent: int) -> float:
    if value == 0.0:
        return 0.0
    try:
        return max(math.ldexp(value, exponent), _LEAST)
    except OverflowError:
        return math.inf


def grid_norm(weight: Array, size: tuple[int, ...], dilation: tuple[int, ...]) -> float:
    """max ||W(w)|| over the frequencies w of a torus of the given size, for a filter (c_out, c_in, *kernel).

    A circular convolution of this size has this norm. A convolution of a smaller image with zeros around it is part of
    the circular one, if the torus has room for the image and for as far as a tap reaches beyond it.
    """
    if not np.isfinite(weight).all():
        return math.nan
    _, top = math.frexp(float(np.abs(weight).max(initial=0.0)))
    wrapped = np.zeros((*weight.shape[:2], *size))
    for tap in np.ndindex(*weight.shape[2:]):
        place = tuple(t * d % n for t, d, n in zip(tap, dilation, size, strict=True))
        there, here = (slice(None), slice(None), *place), (slice(None), slice(None), *tap)
        wrapped[there] += np.ldexp(weight[here], -top)
    axes = tuple(range(2, weight.ndim))
    symbols = np.moveaxis(np.fft.rfftn(wrapped, axes=axes), (0, 1), (-2, -1)).reshape(-1, *weight.shape[:2])
    return _scaled_back(max(float(np.linalg.norm(symbol, 2)) for symbol in symbols) * MARGIN, top)
