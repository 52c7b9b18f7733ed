"""Theorem 3: ||exp(J) - S_K(J)|| <= ||J||^K / K! for K terms of a skew J, and its counterpart for Chebyshev."""

import math

import mpmath  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp
from scipy.linalg import expm

from skewconv.ops.polynomials import Polynomial, polynomial, truncation_error
from tests.ops.engine_cases import NEXT_OF_BASIS
from tests.ops.test_polynomials import evaluate

Matrix = npt.NDArray[np.complex128]

ROUNDING = 1e-12  # of expm and of the sums below in float64, with norms up to 2 pi


def skew_matrix(seed: int, size: int, norm: float, complex_entries: bool) -> Matrix:
    """A random skew-symmetric or skew-Hermitian matrix with the given spectral norm."""
    rng = np.random.default_rng(seed)
    m = rng.standard_normal((size, size)) + 1j * complex_entries * rng.standard_normal((size, size))
    skew = m - m.conj().T
    return np.asarray(skew * (norm / np.linalg.norm(skew, 2)), dtype=np.complex128)


def apply(p: Polynomial, j: Matrix) -> Matrix:
    """p(J) from the definition of its basis."""
    basis = [np.eye(len(j), dtype=np.complex128)]
    for k in range(p.degree):
        basis.append(NEXT_OF_BASIS[p.series](j, j / p.norm_bound, basis, k))
    return np.asarray(sum(c * b for c, b in zip(p.coefficients, basis, strict=True)))


def scalar_error(p: Polynomial, fraction: float) -> mpmath.mpf:
    """|exp(i t) - p(i t)| at a fraction of the norm bound, to high precision."""
    s = mp.mpf(fraction)
    return abs(mp.exp(mp.mpc(0, p.norm_bound * s)) - evaluate(p, s, exact=True))


def measured_order(norms: npt.NDArray[np.float64], errors: list[float]) -> float:
    """The slope of log error against log norm."""
    return float(np.polyfit(np.log(norms), np.log(errors), 1)[0])


@pytest.mark.parametrize("complex_entries", [False, True], ids=["skew-symmetric", "skew-hermitian"])
@pytest.mark.parametrize("series", ["taylor", "chebyshev"])
@pytest.mark.parametrize("degree", [1, 2, 3, 5, 8, 12, 16])
def test_truncation_error_of_matrices_stays_under_the_bound(degree: int, series: str, complex_entries: bool) -> None:
    for seed, norm in enumerate(np.linspace(0.1, 2 * math.pi, 8)):
        j = skew_matrix(seed, 5 + seed % 2, float(norm), complex_entries)
        p = polynomial(float(norm), degree, series)
        assert np.linalg.norm(expm(j) - apply(p, j), 2) <= p.truncation_error + ROUNDING


@given(
    norm=st.floats(0, 2 * math.pi),
    degree=st.integers(1, 16),
    fraction=st.floats(-1, 1),
    series=st.sampled_from(["taylor", "chebyshev"]),
)
def test_truncation_error_stays_under_theorem_3(norm: float, degree: int, fraction: float, series: str) -> None:
    with mp.workdps(400 if norm < 1e-3 else 60):
        p = polynomial(norm, degree, series)
        assert scalar_error(p, fraction) <= p.truncation_error


@pytest.mark.parametrize("degree", range(17))
def test_truncation_error_is_the_paper_s_formula_rounded_up(degree: int) -> None:
    with mp.workdps(60):
        for norm in (0.3, 2.1, math.pi):
            paper = mp.mpf(norm) ** (degree + 1) / mp.factorial(degree + 1)
            stated = truncation_error(norm, degree)
            assert math.nextafter(stated, 0) < paper <= stated


@pytest.mark.parametrize("degree", range(1, 17))
def test_taylor_error_of_scalars_has_order_degree_plus_one(degree: int) -> None:
    norms = np.geomspace(0.01, 0.1, 8)
    with mp.workdps(80):
        errors = [float(scalar_error(polynomial(norm, degree, "taylor"), 1.0)) for norm in norms]
    assert measured_order(norms, errors) == pytest.approx(degree + 1, abs=0.01)


@pytest.mark.parametrize("series", ["taylor", "chebyshev"])
@pytest.mark.parametrize("complex_entries", [False, True], ids=["skew-symmetric", "skew-hermitian"])
@pytest.mark.parametrize("degree", range(1, 7))
def test_error_of_matrices_has_order_degree_plus_one(degree: int, complex_entries: bool, series: str) -> None:
    norms = np.geomspace(0.3, 0.9, 8)
    shape = skew_matrix(degree, 6, 1.0, complex_entries)
    errors = [
        float(np.linalg.norm(expm(norm * shape) - apply(polynomial(norm, degree, series), norm * shape), 2))
        for norm in norms
    ]
    assert measured_order(norms, errors) == pytest.approx(degree + 1, abs=0.1)
