"""Polynomials that stand for exp on the imaginary axis: what they miss, what they amplify, how many terms they need.

Every bound is proven in exact arithmetic and rounded outward.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from numbers import Integral, Real

import numpy as np

from skewconv.errors import ArgumentError
from skewconv.ops.recurrence import Recurrence
from skewconv.ops.series import (
    DEFAULT_SERIES,
    SERIES,
    TRAINING_SERIES,
    Series,
    rms_distance,
    series_named,
    signed_drift,
)
from skewconv.rigor import factor_up, maximum_up, round_up, sqrt_down, sqrt_up, squared_modulus

# Exact Bessel functions take milliseconds at rho = 10 and seconds at 1000, where a thousand convolutions make no layer.
MAX_NORM_BOUND = 1000.0
# What a layer of training may do to the norm of a signal: a hundred of them keep it within ten percent.
MAX_DRIFT = 1e-3


@dataclass(frozen=True)
class Polynomial:
    """p with |exp(i t) - p(i t)| <= truncation_error for |t| <= norm_bound, in the basis of its series.

    >>> p = polynomial(2.1, 4, "taylor")
    >>> p.degree, p.gain[1]
    (4, 1.0)
    """

    series: str
    norm_bound: float
    coefficients: tuple[float, ...]
    truncation_error: float

    def __post_init__(self) -> None:
        series = series_named(self.series)
        _checked_norm_bound(self.norm_bound)
        _checked_degree(self.degree, series)
        if not all(map(math.isfinite, self.coefficients)):
            raise ArgumentError(f"coefficients must be finite, got {self.coefficients}")
        if not 0 <= self.truncation_error < math.inf:
            raise ArgumentError(f"truncation_error must be finite and >= 0, got {self.truncation_error}")
        # t = 0 is one of the points where p is close to exp.
        at_zero = series.at_zero(self.coefficients)
        if abs(at_zero - 1) > self.truncation_error + 2**-51:
            raise ArgumentError(
                f"p(0) = {at_zero} is further from exp(0) = 1 than truncation_error = {self.truncation_error}; "
                "build polynomials with `polynomial`, which proves the error it states"
            )

    @property
    def degree(self) -> int:
        """The number of convolutions: the paper's K terms less one."""
        return len(self.coefficients) - 1

    @cached_property
    def gain(self) -> tuple[float, float]:
        """Proven (min, max) of |p(i t)| for |t| <= norm_bound, rounded outward."""
        return self.gain_within(self.norm_bound)

    def gain_within(self, norm: float) -> tuple[float, float]:
        """Proven (min, max) of |p(i t)| for |t| <= norm, which may be below norm_bound, and above it."""
        ratio = Fraction(1) if norm == self.norm_bound else Fraction(norm) / Fraction(self.norm_bound)
        squared, denominator = squared_modulus([c * ratio**k for k, c in enumerate(self._in_scaled_powers())])
        low = -maximum_up([-c for c in squared], denominator)
        high = maximum_up(squared, denominator)
        return sqrt_down(max(low, Fraction(0))), sqrt_up(high)

    def in_powers(self) -> list[Fraction]:
        """The exact coefficients of p in powers of J."""
        rho = Fraction(self.norm_bound)
        return [c / rho**k if rho else c for k, c in enumerate(self._in_scaled_powers())]

    def _in_scaled_powers(self) -> list[Fraction]:
        """The exact coefficients of p in powers of J / norm_bound."""
        series = SERIES[self.series]
        return series.in_powers(series.exact_coefficients(self.coefficients), self.norm_bound)

    def __call__(self, z: np.ndarray) -> np.ndarray:
        """p(z) in floating point, for complex numbers z: not proven."""
        series = SERIES[self.series]
        scaled, basis = z / (self.norm_bound or 1.0), series.unit_basis
        total, before, now = np.zeros_like(scaled), np.zeros_like(scaled), np.ones_like(scaled)
        for k, c in enumerate(series.in_unit_basis(self.coefficients, self.norm_bound or 1.0)):
            total = total + c * now
            before, now = now, (basis.step if k else 1.0) * scaled * now + basis.back * before
        return total

    def non_expansive(self) -> "Polynomial":
        """p divided by its own largest gain, where that is above 1; p itself where it is not."""
        result, divisor = self, 1.0
        while result.gain[1] > 1:
            # Rounding the quotients can lift the gain by a few units in the last place: go round again if so.
            divisor *= result.gain[1] * factor_up(4)
            result = self._divided(divisor)
        return result

    def _divided(self, divisor: float) -> "Polynomial":
        series = SERIES[self.series]
        exact = [c / Fraction(divisor) for c in series.exact_coefficients(self.coefficients)]
        rounded = tuple(float(c) for c in exact)
        # |p/g - e| <= |p - e|/g + |1/g - 1|, and the basis bounds what the rounding of a coefficient changes.
        growth = series.basis_growth(self.norm_bound)
        error = Fraction(self.truncation_error) / Fraction(divisor) + abs(1 - 1 / Fraction(divisor))
        error += sum(abs(Fraction(r) - c) * growth**k for k, (r, c) in enumerate(zip(rounded, exact, strict=True)))
        return replace(self, coefficients=rounded, truncation_error=round_up(error))


def polynomial(norm_bound: float, degree: int, series: str) -> Polynomial:
    """The polynomial of a degree (the number of convolutions) that a series has for ||J|| <= norm_bound <= 1000.

    >>> polynomial(2.1, 2, "taylor").coefficients
    (1.0, 1.0, 0.5)
    """
    family = series_named(series)
    return _polynomial(_checked_norm_bound(norm_bound), _checked_degree(degree, family), family)


def recurrence_of(p: Polynomial, *, inverse: bool = False, reversible: bool = False) -> Recurrence:
    """The recurrence of p(J), or of p(-J) = p(J)^H; one that can also be run backwards, if asked for."""
    # No method: compilers read the fields of a polynomial that is a constant, and nothing else of it.
    steps = SERIES[p.series].recurrence(p.coefficients, p.norm_bound)
    if reversible:
        steps = steps.reversible(p.norm_bound)
    return steps.adjoint() if inverse else steps


def truncation_error(norm_bound: float, degree: int, series: str = "taylor") -> float:
    """An upper bound on sup |exp(i t) - p(i t)|: rho^(d+1) / (d+1)! (Theorem 3), or the tail of the series.

    Of Chebyshev's series, with 2 sum |J_k(rho)| over the even k > d and over the odd ones, it is the root of the sum of
    both squares, since one part is real and the other imaginary. It includes the rounding of coefficients to floats.

    >>> round(truncation_error(2.1, 5), 3), round(truncation_error(2.1, 5, "chebyshev"), 4)
    (0.119, 0.0033)
    """
    return polynomial(norm_bound, degree, series).truncation_error


def gain(norm_bound: float, degree: int, series: str) -> tuple[float, float]:
    """Proven (min, max) of |p(i t)| for |t| <= rho: the max is never below the truth, the min never above it.

    >>> gain(2.1, 5, "taylor")[1] > 1.0, gain(2.1, 8, "taylor")[1]
    (True, 1.0)
    """
    return polynomial(norm_bound, degree, series).gain


def degree_for(norm_bound: float, tol: float, series: str) -> int:
    """The smallest degree whose truncation error is at most tol.

    >>> degree_for(2.1, 1e-6, "taylor"), degree_for(2.1, 1e-6, "chebyshev")
    (13, 9)
    """
    return _degree_for(_checked_norm_bound(norm_bound), _checked_tol(tol), series_named(series))


def non_expansive_polynomial(norm_bound: float, tol: float, series: str) -> Polynomial:
    """The polynomial of smallest degree within tol of exp whose gain is proven to be at most 1."""
    return _non_expansive_polynomial(_checked_norm_bound(norm_bound), _checked_tol(tol), series_named(series))


def training_polynomial(norm_bound: float, tol: float, series: str = TRAINING_SERIES) -> Polynomial:
    """The polynomial of smallest degree that keeps norms, and is within tol of exp, on the spectrum that filters have.

    Both are means over the model spectrum of :mod:`skewconv.ops.series`: the mean of log |p| is at most 0.001 in
    absolute value, so that 100 layers keep the norm of signals and gradients within ten percent, and the root mean
    square of |p - exp| is at most tol. Norms above 6 have a Chebyshev polynomial in place of an isometric one.

    >>> [training_polynomial(rho, 0.03).degree for rho in (0.5, 1.4, 2.1, 3.1)]
    [2, 3, 4, 6]
    """
    family = series_named(series)
    if norm_bound > family.largest_norm:
        family = SERIES[DEFAULT_SERIES]
    return _training_polynomial(_checked_norm_bound(norm_bound), _checked_tol(tol), family)


@lru_cache(maxsize=1024)
def _training_polynomial(rho: float, tol: float, series: Series) -> Polynomial:
    last = min(series.last_useful_degree(rho), series.max_degree)
    for degree in range(max(1, int(rho) - 2), last + 1):
        p = _polynomial(rho, degree, series)
        if abs(signed_drift(p, rho)) <= MAX_DRIFT and rms_distance(p, rho) <= tol:
            return p
    raise _unattainable(tol, rms_distance(_polynomial(rho, last, series), rho), series, rho)


@lru_cache(maxsize=4096)
def _polynomial(rho: float, degree: int, series: Series) -> Polynomial:
    coefficients, error = series.truncated(rho, degree)
    return Polynomial(series.name, rho, coefficients, round_up(error))


@lru_cache(maxsize=1024)
def _degree_for(rho: float, tol: float, series: Series) -> int:
    # Where degree 0 does not do, the set of degrees that do has no gaps: Theorem 3's bound rises above rho before it
    # falls, and each further Chebyshev coefficient is rounded by no more than the term it takes off the tail.
    last = series.last_useful_degree(rho)
    degree = bisect_left(range(last + 1), True, key=lambda d: _polynomial(rho, d, series).truncation_error <= tol)
    if degree <= last:
        return degree
    raise _unattainable(tol, _polynomial(rho, last, series).truncation_error, series, rho)


@lru_cache(maxsize=1024)
def _non_expansive_polynomial(rho: float, tol: float, series: Series) -> Polynomial:
    # Division by the gain can only add to an error below 1, so lower degrees are out of the question. A few higher ones
    # make up for it: beyond, rounding decides.
    first, most = (_degree_for(rho, tol, series), 32) if tol < 1 else (0, 32 + math.ceil(3 * rho))
    errors = []
    for degree in range(first, min(first + most, series.last_useful_degree(rho)) + 1):
        p = _polynomial(rho, degree, series).non_expansive()
        if p.truncation_error <= tol:
            return p
        errors.append(p.truncation_error)
    raise _unattainable(tol, min(errors), series, rho)


def _number(value: object) -> float:
    """The float equal to value, or NaN, which passes no check."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        number = float(value)
    except OverflowError:
        return math.nan
    return number if number == value else math.nan


def _checked_norm_bound(norm_bound: object) -> float:
    rho = _number(norm_bound)
    if not 0 <= rho <= MAX_NORM_BOUND:
        raise ArgumentError(
            f"norm_bound must be a float from 0 to {MAX_NORM_BOUND:g}, got {norm_bound!r}; "
            "scale the filter down, or wrap its angles into [-pi, pi] first"
        )
    return rho


def _checked_degree(degree: object, series: Series) -> int:
    if isinstance(degree, bool) or not isinstance(degree, Integral) or not 0 <= int(degree) <= series.max_degree:
        raise ArgumentError(
            f"degree must be an integer from 0 to {series.max_degree} for {series.name}, got {degree!r}; "
            "`degree_for` finds the degree a tolerance needs"
        )
    return int(degree)


def _checked_tol(tol: object) -> float:
    number = _number(tol)
    if not number > 0:
        raise ArgumentError(f"tol must be a float above 0, got {tol!r}; 1e-6 suits float32")
    return number


def _unattainable(tol: float, best: float, series: Series, rho: float) -> ArgumentError:
    return ArgumentError(
        f"tol {tol!r} cannot be met by {series.name} with norm_bound {rho!r} and coefficients in float64: "
        f"the smallest attainable is {best!r}; raise tol to that{series.advice}"
    )
