"""The spectrum that skew filters have, as a model: where a polynomial of training has to be right.

At each frequency the symbol of a random filter is a random skew-Hermitian matrix, whose eigenvalues i t follow Wigner's
semicircle law on [-r, r], r its norm. Filters of trained layers have the same or more of their eigenvalues near zero.
The model is the mean of three semicircle laws, r = rho / 2, 3 rho / 4 and rho, as the norm is known by an upper bound.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray

_NODES = 64
_RADII = (0.5, 0.75, 1.0)


def _semicircle() -> tuple[Array, Array]:
    """Nodes and weights of Gauss and Chebyshev's rule of the second kind: exact for polynomials of degree 127."""
    angles = np.arange(1, _NODES + 1) * math.pi / (_NODES + 1)
    weights = np.sin(angles) ** 2
    return np.cos(angles), weights / weights.sum()


def spectrum() -> tuple[Array, Array]:
    """The model for rho = 1: nodes s in [-1, 1] and weights that sum to one, (192,) each."""
    nodes, weights = _semicircle()
    return np.concatenate([r * nodes for r in _RADII]), np.concatenate([weights] * len(_RADII)) / len(_RADII)


def drift(p: Callable[[Array], Array], rho: float) -> float:
    """The absolute value of :func:`signed_drift`."""
    return abs(signed_drift(p, rho))


def signed_drift(p: Callable[[Array], Array], rho: float) -> float:
    """The mean of log |p(i t)| over that semicircle law of the model where it is furthest from zero.

    A layer multiplies the norm of a signal that is spread over its spectrum by about exp of that mean, and 100 layers
    by exp of 100 times it.
    """
    nodes, weights = _semicircle()
    tiny = np.finfo(float).tiny
    means = [weights @ np.log(np.maximum(np.abs(p(1j * rho * r * nodes)), tiny)) for r in _RADII]
    return float(max(means, key=abs))


def rms_distance(p: Callable[[Array], Array], rho: float) -> float:
    """The root of the mean of |p(i t) - exp(i t)|^2 over the model: how far training is from evaluation."""
    nodes, weights = spectrum()
    z = 1j * rho * nodes
    return math.sqrt(weights @ np.abs(p(z) - np.exp(z)) ** 2)
