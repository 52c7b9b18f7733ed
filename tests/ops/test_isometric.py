"""The polynomials of training: proven errors, and norms that are kept on the spectra that filters have."""

import math

import numpy as np
import pytest
import torch
from mpmath import mp  # type: ignore[import-untyped]
from scipy.optimize import least_squares

from skewconv.errors import ArgumentError
from skewconv.nn import SOC1d, SOC2d, SOC3d, SUC2d
from skewconv.ops import dense_jacobian
from skewconv.ops.polynomials import MAX_DRIFT, polynomial, training_polynomial
from skewconv.ops.series import rms_distance, signed_drift, spectrum

NORMS = [0.1, 0.5, 1.0, 1.4, 2.1, 2.8, math.pi, 6.0]


@pytest.mark.parametrize("norm", [*NORMS, 20.0])
@pytest.mark.parametrize("degree", [0, 1, 3, 4, 6, 12])
def test_the_stated_error_holds_and_is_tight(norm: float, degree: int) -> None:
    p = polynomial(norm, degree, "isometric")
    with mp.workdps(50):
        points = [mp.mpf(norm) * k / 400 for k in range(401)]
        powers = [mp.mpf(c) for c in p.coefficients]
        error = max(abs(mp.polyval(powers[::-1], mp.mpc(0, t)) - mp.expj(t)) for t in points)
        assert error <= p.truncation_error
        if norm <= 6:
            assert p.truncation_error <= error * mp.mpf("1.01") + mp.mpf(10) ** -9


@pytest.mark.parametrize(("norm", "degree"), [(0.7, 2), (1.4, 3), (2.1, 4), (2.8, 5), (math.pi, 6)])
def test_the_coefficients_are_the_minimum_that_another_solver_finds(norm: float, degree: int) -> None:
    nodes, weights = spectrum()
    z, root = 1j * norm * nodes, np.sqrt(weights)

    def residuals(c: np.ndarray) -> np.ndarray:
        p = np.polynomial.polynomial.polyval(z, np.concatenate([[1.0], c]))
        away = p - np.exp(z)
        return np.concatenate([root * away.real, root * away.imag, math.sqrt(30) * root * (np.abs(p) - 1)])

    start = [0.9 / math.factorial(k) for k in range(1, degree + 1)]
    found = least_squares(residuals, start, xtol=1e-15, ftol=1e-15, gtol=1e-15)
    ours = polynomial(norm, degree, "isometric").coefficients
    assert ours[0] == 1.0
    assert float((residuals(np.array(ours[1:])) ** 2).sum()) <= 2 * found.cost * (1 + 1e-9) + 1e-16
    np.testing.assert_allclose(ours[1:], found.x, atol=1e-6)


def test_the_model_spectrum_is_a_mean_of_semicircle_laws() -> None:
    # Even moments of the semicircle law on [-r, r]: Catalan numbers times (r / 2)^(2k).
    nodes, weights = spectrum()
    for k in range(8):
        expected = math.comb(2 * k, k) / (k + 1) * np.mean([(r / 2) ** (2 * k) for r in (0.5, 0.75, 1.0)])
        assert float(weights @ nodes ** (2 * k)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("series", ["isometric", "taylor", "chebyshev"])
def test_the_training_polynomial_is_the_shortest_that_keeps_norms(norm: float, series: str) -> None:
    p = training_polynomial(norm, 0.03, series)
    assert abs(signed_drift(p, norm)) <= MAX_DRIFT
    assert rms_distance(p, norm) <= 0.03
    for degree in range(1, p.degree):
        shorter = polynomial(norm, degree, series)
        assert abs(signed_drift(shorter, norm)) > MAX_DRIFT or rms_distance(shorter, norm) > 0.03


def test_norms_beyond_its_fits_have_a_polynomial_too() -> None:
    assert training_polynomial(30.0, 0.03).series == "chebyshev"
    with pytest.raises(ArgumentError, match=r'use series="chebyshev"'):
        training_polynomial(2.1, 1e-13)


def spectra() -> list[np.ndarray]:
    torch.manual_seed(0)
    line, planes = (SOC1d(12, 12, 3), 12), [(SOC2d(12, 12, 3), 4), (SOC2d(6, 6, 5), 5), (SOC2d(8, 8, 3, groups=2), 5)]
    found = []
    for layer, size in [line, *planes, (SOC3d(3, 3, 3), 4), (SUC2d(5, 5, 3), 4)]:
        weight = layer.eval().weight.detach()
        weight = weight.to(torch.complex128 if weight.is_complex() else torch.float64)
        jacobian = dense_jacobian(weight, (size,) * layer.axes, groups=layer.groups).numpy()
        found.append(np.linalg.eigvalsh(1j * jacobian))
    return found


def test_the_spectra_of_filters_keep_norms_as_the_model_says() -> None:
    for angles in spectra():
        norm = float(np.abs(angles).max())
        for interval in (1.05 * norm, 1.3 * norm, 1.7 * norm):
            p = training_polynomial(interval, 0.03)
            gain = math.exp(100 * float(np.log(np.abs(p(1j * angles))).mean()))
            assert 0.9 < gain < 1.1, (norm, interval, gain)
            assert math.sqrt(float(np.mean(np.abs(p(1j * angles) - np.exp(1j * angles)) ** 2))) < 0.03
