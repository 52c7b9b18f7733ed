"""The series that stand for exp on the imaginary axis: a class for each, and a line in the table at the end."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, TypeAlias

import numpy as np

from skewconv.errors import ArgumentError
from skewconv.ops.recurrence import Recurrence
from skewconv.rigor import bessel, bessel_tail_up, chebyshev_to_powers, maximum_up, sqrt_up, squared_modulus

Array: TypeAlias = np.ndarray


@dataclass(frozen=True)
class UnitBasis:
    """phi_0 = 1, phi_1 = z, phi_{k+1} = step z phi_k + back phi_{k-1}: at most one for z in [-i, i]."""

    step: float  # a power of two, so that scaling by it is exact
    back: float  # zero or one
    error_weight: Callable[[int], float]  # k -> w_k: errors of at most e in every product reach phi_k as at most e w_k


class Series(ABC):
    """A family of polynomials p = sum_k c_k b_k(J) of every degree, near exp for ||J|| <= rho.

    A new one is a subclass, and an instance in ``SERIES``.
    """

    name: ClassVar[str]
    max_degree: ClassVar[int]
    unit_basis: ClassVar[UnitBasis]
    # Up to here some degree keeps the norm through 100 layers of training.
    largest_norm: ClassVar[float] = math.inf
    # What else to do where a tolerance cannot be met.
    advice: ClassVar[str] = ""

    @abstractmethod
    def truncated(self, rho: float, degree: int) -> tuple[tuple[float, ...], Fraction]:
        """The coefficients c_0 ... c_degree, and an upper bound on sup |exp(i t) - p(i t)| for |t| <= rho."""

    def exact_coefficients(self, coefficients: tuple[float, ...]) -> list[Fraction]:
        """What the coefficients stand for: themselves."""
        return [Fraction(c) for c in coefficients]

    @abstractmethod
    def last_useful_degree(self, rho: float) -> int:
        """The degree after which nothing is gained."""

    @abstractmethod
    def at_zero(self, coefficients: Sequence[float]) -> float:
        """p(0), rounded once."""

    @abstractmethod
    def basis_growth(self, rho: float) -> Fraction:
        """g with |b_k(i t)| <= g^k for |t| <= rho."""

    @abstractmethod
    def in_powers(self, exact: Sequence[Fraction], rho: float) -> list[Fraction]:
        """The coefficients of p in powers of z = J / rho."""

    @abstractmethod
    def recurrence(self, coefficients: tuple[float, ...], rho: float) -> Recurrence:
        """p(J) as a monic recurrence."""

    @abstractmethod
    def in_unit_basis(self, coefficients: tuple[float, ...], rho: float) -> list[float]:
        """The coefficients of p in the unit basis of z = J / rho."""


class PowerSeries(Series):
    """b_k(J) = J^k."""

    # phi_k = z^k: an error of one product reaches phi_k without growing.
    unit_basis = UnitBasis(step=1.0, back=0.0, error_weight=float)

    def last_useful_degree(self, rho: float) -> int:
        return self.max_degree

    def at_zero(self, coefficients: Sequence[float]) -> float:
        return coefficients[0]

    def basis_growth(self, rho: float) -> Fraction:
        return Fraction(rho)

    def in_powers(self, exact: Sequence[Fraction], rho: float) -> list[Fraction]:
        return [c * Fraction(rho) ** k for k, c in enumerate(exact)]

    def recurrence(self, coefficients: tuple[float, ...], rho: float) -> Recurrence:
        return Recurrence(coefficients, (0.0,) * max(0, len(coefficients) - 2))

    def in_unit_basis(self, coefficients: tuple[float, ...], rho: float) -> list[float]:
        return [c * math.prod([rho] * k) for k, c in enumerate(coefficients)]


class Taylor(PowerSeries):
    """|exp(i t) - p(i t)| <= rho^(d+1) / (d+1)! (Theorem 3)."""

    name = "taylor"
    max_degree = 170  # 1 / 171! is subnormal
    advice = ', or use series="chebyshev"'

    def truncated(self, rho: float, degree: int) -> tuple[tuple[float, ...], Fraction]:
        return _inverse_factorials(degree), Fraction(rho) ** (degree + 1) / math.factorial(degree + 1)

    def exact_coefficients(self, coefficients: tuple[float, ...]) -> list[Fraction]:
        """The floats nearest to 1 / k! stand for 1 / k! itself; all others for themselves."""
        degree = len(coefficients) - 1
        if coefficients == _inverse_factorials(degree):
            return [Fraction(1, math.factorial(k)) for k in range(degree + 1)]
        return super().exact_coefficients(coefficients)


@lru_cache(maxsize=256)
def _inverse_factorials(degree: int) -> tuple[float, ...]:
    return tuple(1 / math.factorial(k) for k in range(degree + 1))


class Chebyshev(Series):
    """phi_0 = 1, phi_1 = z, phi_{k+1} = 2 z phi_k + phi_{k-1}, with an error below 2 sum_{k > degree} |J_k(rho)|.

    The terms with even k are real and those with odd k imaginary: the error is the root of the squares of the two sums,
    and includes the rounding of the coefficients to floats. Needs little more than rho terms.
    """

    name = "chebyshev"
    max_degree = 2048  # never met in earnest
    # An error made in phi_j reaches phi_k through the polynomial U_{k-j} of the second kind, |U_n| <= n + 1: in all
    # 1 + 2 + ... + k.
    unit_basis = UnitBasis(step=2.0, back=1.0, error_weight=lambda k: k * (k + 1) / 2)

    def truncated(self, rho: float, degree: int) -> tuple[tuple[float, ...], Fraction]:
        terms = [_coefficient(rho, k) for k in range(degree + 1)]
        error = bessel_tail_up(rho, degree) + sum(rounding for _, rounding in terms)
        return tuple(coefficient for coefficient, _ in terms), error

    def last_useful_degree(self, rho: float) -> int:
        """There the Bessel tail is below 2^-300, far under any rounding."""
        return math.ceil(1.5 * rho) + 64

    def at_zero(self, coefficients: Sequence[float]) -> float:
        return math.fsum(coefficients[::2])

    def basis_growth(self, rho: float) -> Fraction:
        return Fraction(1)

    def in_powers(self, exact: Sequence[Fraction], rho: float) -> list[Fraction]:
        return chebyshev_to_powers(exact)

    def recurrence(self, coefficients: tuple[float, ...], rho: float) -> Recurrence:
        """phi_k = s_k u_k with s_k = 2^(k-1) / rho^k, b_1 = rho^2 / 2 and b_k = rho^2 / 4 after it."""
        scaled, degree = list(coefficients), len(coefficients) - 1
        for k in range(1, degree + 1):
            # One factor at a time because s_k alone may overflow.
            scaled[k] /= 2
            for _ in range(k):
                scaled[k] *= 2 / rho
        return Recurrence(tuple(scaled), tuple(rho * rho / (2 if k == 1 else 4) for k in range(1, degree)))

    def in_unit_basis(self, coefficients: tuple[float, ...], rho: float) -> list[float]:
        return list(coefficients)


@lru_cache(maxsize=8192)
def _coefficient(rho: float, k: int) -> tuple[float, Fraction]:
    """The float nearest to J_0(rho) or 2 J_k(rho), and a bound on the distance between the two."""
    factor = 2 if k else 1
    centre, radius = bessel(rho, k)
    coefficient = float(factor * centre)
    return coefficient, abs(Fraction(coefficient) - factor * centre) + factor * radius


# The model of the spectrum that filters have in training: at each frequency the symbol of a random filter is a random
# skew-Hermitian matrix, whose eigenvalues i t follow Wigner's semicircle law on [-r, r], r its norm. Filters of trained
# layers have the same or more of their eigenvalues near zero. The model is the mean of three semicircle laws,
# r = rho / 2, 3 rho / 4 and rho, as the norm is known by an upper bound.
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
    max_degree = Taylor.max_degree
    largest_norm = 6.0
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


SERIES: dict[str, Series] = {series.name: series for series in (Taylor(), Chebyshev(), Isometric())}

# In evaluation, the one that needs the fewest convolutions for an error; in training, the one that keeps the gradient.
DEFAULT_SERIES = Chebyshev.name
TRAINING_SERIES = Isometric.name


def series_named(name: str) -> Series:
    if not isinstance(name, str) or name not in SERIES:
        names = ", ".join(f'"{known}"' for known in SERIES)
        raise ArgumentError(f"series must be one of {names}, got {name!r}")
    return SERIES[name]
