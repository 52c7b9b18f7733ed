"""The norm of a convolution of images of one size, from its symbols on a torus that holds them."""

from collections.abc import Iterator

import numpy as np
from flint import arb

from skewconv.ball.array import largest
from skewconv.ball.exact import Floats
from skewconv.ball.norms import spectral_norm_upper_bound

# Roundings of an angle of a few turns, of its cosine or sine, and of a product; in units of 2^-53.
_ROUNDINGS = 80


def torus_norm_upper_bound(weight: Floats, torus: tuple[int, ...], target: float) -> arb:
    """At least ||J|| for a filter of one group on a torus, or on any image that lies in one with room for its taps.

    J is unitarily equivalent to its symbols S(w) = sum_t W_t e^(-i w t) at the frequencies of the torus. Of S(w) and
    S(-w), which are conjugate, one is looked at, as the real matrix [[Re S, -Im S], [Im S, Re S]] of the same norm.

    Args:
        weight: (c_out, c_in, *kernel), float64.
        torus: its sizes.
        target: what ||J|| is said to be at most.
    """
    error = (
        2.0**-52 * (_ROUNDINGS + weight[0, 0].size) * np.linalg.norm(np.abs(weight).sum(tuple(range(2, weight.ndim))))
    )
    norms = [spectral_norm_upper_bound(symbol, target) for symbol in _symbols(weight, torus)]
    return (largest(norms) + arb(float(error) * (1 + 1e-6))).upper()


def _symbols(weight: Floats, torus: tuple[int, ...]) -> Iterator[Floats]:
    kernel = weight.shape[2:]
    taps = np.stack(np.meshgrid(*(np.arange(k) - k // 2 for k in kernel), indexing="ij"), -1).reshape(-1, len(kernel))
    flat = weight.reshape(*weight.shape[:2], -1)
    for frequency in np.ndindex(*torus):
        mirrored = tuple(-f % n for f, n in zip(frequency, torus, strict=True))
        if mirrored < frequency:
            continue
        # Reduced before it is divided, so that the angle is of a few turns at most.
        turns = sum((taps[:, j] * f % n) / n for j, (f, n) in enumerate(zip(frequency, torus, strict=True)))
        real, imaginary = flat @ np.cos(2 * np.pi * turns), flat @ -np.sin(2 * np.pi * turns)
        yield np.block([[real, -imaginary], [imaginary, real]])
