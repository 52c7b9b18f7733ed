"""The polynomials of training: p(0) = 1 and |p| nearly one on the spectrum that filters have.

The model of that spectrum: at each frequency the symbol of a random filter is a random skew-Hermitian matrix, whose
eigenvalues i t follow Wigner's semicircle law on [-r, r], r its norm. Filters of trained layers have the same or more
of their eigenvalues near zero. The model is the mean of three semicircle laws, r = rho / 2, 3 rho / 4 and rho, as the
norm is known by an upper bound.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import ClassVar, TypeAlias

import numpy as np

from skewconv.ops.series.taylor import TAYLOR, PowerSeries
from skewconv.rigor import maximum_up, sqrt_up, squared_modulus

Array: TypeAlias = np.ndarray

_NODES = 64
_RADII = (0.5, 0.75, 1.0)
# What |p| - 1 counts beside p - exp. The phase of a layer may be off a little; its gain is taken to the power of depth.
_WEIGHT = 30.0
_STEPS = 100
# Coefficients are rounded to this, so that they are the same on every processor.
_GRAIN = 2.0**-32
# Below this norm, and above this degree, Taylor's coefficients are as good, and a fit is decided by rounding.
_SMALL, _LAST_FIT = 0.25, 12
# Beyond, |p - exp| <= |p| + 1 is all that is said.
_LARGE = 16.0


class Isometric(PowerSeries):
    """The minimum of mean |p - exp|^2 + 30 mean (|p| - 1)^2 over the model spectrum on [-rho, rho], with p(0) = 1.

    The freedom that the phase has is spent on the modulus: with three products 100 layers whose norm is 1.4 keep norms
    within 7 %, where Taylor's three leave a half and Chebyshev's a hundredth.
    """

    name = "isometric"
    max_degree = TAYLOR.max_degree
    # Up to here some degree keeps the norm through 100 layers.
    largest_norm: ClassVar[float] = 6.0
    advice = ', or use series="chebyshev"'

    def last_useful_degree(self, rho: float) -> int:
        return _LAST_FIT

    def truncated(self, rho: float, degree: int) -> tuple[tuple[float, ...], Fraction]:
        coefficients = _fitted(rho, degree)
        return coefficients, _largest_error(coefficients, rho)


def _fitted(rho: float, degree: int) -> tuple[float, ...]:
    """The coefficients, by Gauss and Newton's method."""
    powers = range(1, degree + 1)
    if rho < _SMALL or degree == 0 or degree > _LAST_FIT:
        return (1.0, *(1 / math.factorial(k) for k in powers))
    nodes, weights = spectrum()
    basis = np.stack([(1j * nodes) ** k for k in powers], 1)
    a = np.array([rho**k / math.factorial(k) for k in powers])
    exact, root = np.exp(1j * rho * nodes), np.sqrt(weights)
    light, heavy = root[:, None] * basis, math.sqrt(_WEIGHT) * root
    for _ in range(_STEPS):
        p = 1 + basis @ a
        modulus, away = np.abs(p), root * (p - exact)
        residual = np.concatenate([away.real, away.imag, heavy * (modulus - 1)])
        slopes = (p.conj()[:, None] * basis).real / modulus[:, None]
        step = np.linalg.lstsq(np.concatenate([light.real, light.imag, heavy[:, None] * slopes]), -residual)[0]
        a += step
        if np.abs(step).max() < 1e-13:
            break
    return (1.0, *(float(np.round(a[k - 1] / rho**k / _GRAIN) * _GRAIN) for k in powers))


def _largest_error(coefficients: tuple[float, ...], rho: float) -> Fraction:
    """sup |p(i t) - exp(i t)| for |t| <= rho, rounded up: the difference from a long Taylor series, and its tail."""
    exact, r = [Fraction(c) for c in coefficients], Fraction(rho)
    if rho > _LARGE:
        return 1 + sum((abs(c) * r**k for k, c in enumerate(exact)), Fraction(0))
    terms = max(24 + 4 * math.ceil(rho), len(exact) + 7)
    exact += [Fraction(0)] * (terms + 1 - len(exact))
    difference = [(c - Fraction(1, math.factorial(k))) * r**k for k, c in enumerate(exact)]
    squared, denominator = squared_modulus(difference)
    tail = r ** (terms + 1) / math.factorial(terms + 1)
    return Fraction(sqrt_up(max(maximum_up(squared, denominator), Fraction(0)))) + tail


def _semicircle() -> tuple[Array, Array]:
    """Nodes and weights of Gauss and Chebyshev's rule of the second kind: exact for polynomials of degree 127."""
    angles = np.arange(1, _NODES + 1) * math.pi / (_NODES + 1)
    weights = np.sin(angles) ** 2
    return np.cos(angles), weights / weights.sum()


def spectrum() -> tuple[Array, Array]:
    """The model for rho = 1: nodes s in [-1, 1] and weights that sum to one, (192,) each."""
    nodes, weights = _semicircle()
    return np.concatenate([r * nodes for r in _RADII]), np.concatenate([weights] * len(_RADII)) / len(_RADII)


def signed_drift(p: Callable[[Array], Array], rho: float) -> float:
    """The mean of log |p(i t)| over that semicircle law of the model where it is furthest from zero.

    100 layers multiply the norm of a signal that is spread over their spectrum by about exp of 100 times that mean.
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


ISOMETRIC = Isometric()
