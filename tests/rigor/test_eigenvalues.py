"""Proven bounds of singular values: never below the truth, and close above it."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from skewconv.errors import DtypeError, NotFiniteError, ShapeError
from skewconv.rigor import (
    eigenvalues,
    gamma,
    largest_eigenvalue_upper_bound,
    spectral_norm_upper_bound,
    squaring_upper_bound,
    squarings_for,
)

DTYPES = [torch.float64, torch.complex128]


def orthogonal(size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.linalg.qr(torch.randn(size, size, dtype=dtype)).Q


def with_singular_values(values: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    size = len(values)
    return orthogonal(size, dtype) @ torch.diag(values).to(dtype) @ orthogonal(size, dtype)


def numpy_norm(matrix: Tensor) -> float:
    return float(np.linalg.svd(matrix.numpy(), compute_uv=False).max())


def assert_just_above(bound: float, truth: float, excess: float) -> None:
    # The truth comes from an SVD in float64, itself wrong by some units in the last place.
    assert truth * (1 - 1e-14) <= bound <= truth * (1 + excess)


@given(
    rows=st.integers(1, 12),
    columns=st.integers(1, 12),
    batch=st.sampled_from([(), (1,), (3,), (2, 2)]),
    dtype=st.sampled_from(DTYPES),
    exponent=st.integers(-300, 300),
    seed=st.integers(0, 10**6),
)
def test_the_bound_is_just_above_the_largest_singular_value_at_every_scale(rows, columns, batch, dtype, exponent, seed):
    matrix = torch.randn(*batch, rows, columns, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    bound = spectral_norm_upper_bound(matrix * 2.0**exponent)
    assert_just_above(math.ldexp(bound, -exponent), numpy_norm(matrix), 1e-12)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_the_bound_is_above_the_norm_computed_with_sixty_digits(rows):
    for seed in range(10):
        matrix = torch.randn(rows, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        with mpmath.workdps(60):
            exact = mpmath.matrix(matrix.tolist())
            truth = mpmath.sqrt(max(mpmath.eigsy(exact * exact.T, eigvals_only=True)))
            assert truth <= mpmath.mpf(spectral_norm_upper_bound(matrix)) <= truth * (1 + mpmath.mpf(10) ** -13)


def clustered(size: int, spread: float):
    return lambda dtype: with_singular_values(1 - spread * torch.arange(size, dtype=torch.float64), dtype)


def badly_scaled(condition: float):
    def matrix(dtype):
        scales = torch.logspace(0, -math.log10(condition), 30, dtype=torch.float64)
        rows = torch.randn(30, 30, dtype=dtype) * scales[:, None]
        return torch.stack([rows, rows.T, rows * scales])

    return matrix


# Matrices of side 300 are beyond the eigensolver: Lanczos guesses, Cholesky proves.
MATRICES = {
    **{f"gaussian {n}": (lambda dtype, n=n: torch.randn(n, n, dtype=dtype)) for n in (16, 64, 300, 700)},
    **{f"clustered 40 by {s:g}": clustered(40, s) for s in (0.0, 1e-15, 1e-10, 1e-6, 1e-3)},
    "clustered 300 by 1e-9": clustered(300, 1e-9),
    **{f"badly scaled by {c:g}": badly_scaled(c) for c in (1e4, 1e100, 1e300)},
    "rank one": lambda dtype: torch.outer(torch.randn(50, dtype=dtype), torch.randn(80, dtype=dtype)),
    "rank one 300": lambda dtype: with_singular_values(torch.eye(300, dtype=torch.float64)[0], dtype),
    "two apart": lambda dtype: with_singular_values(torch.cat([torch.ones(1), torch.full((299,), 1 - 1e-7)]), dtype),
    "one row": lambda dtype: torch.randn(1, 7, dtype=dtype),
    "batch": lambda dtype: torch.randn(6, 5, 7, dtype=dtype) * torch.logspace(-5, 0, 6).double()[:, None, None],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", MATRICES)
def test_no_kind_of_matrix_fools_the_bound(kind, dtype):
    matrix = MATRICES[kind](dtype)
    large = matrix.shape[-1] > eigenvalues._EIGVALSH_LIMIT
    assert_just_above(spectral_norm_upper_bound(matrix), numpy_norm(matrix), 1e-9 if large else 1e-11)


@pytest.mark.parametrize("value", [0.0, 1.0, 3.0, 1e300, 1e-300, 5e-324, 2.0**-1074 * 3, 1.7e308])
def test_a_single_entry_is_bounded_at_the_ends_of_the_range(value):
    bound = spectral_norm_upper_bound(torch.tensor([[value]], dtype=torch.float64))
    assert spectral_norm_upper_bound(torch.full((4, 4), 1e308, dtype=torch.float64)) == math.inf
    assert value <= bound <= max(value * (1 + 1e-13), value and math.nextafter(value, math.inf))


def test_the_bound_carries_the_margins_of_the_product_and_of_cholesky():
    size = 64
    excess = spectral_norm_upper_bound(torch.eye(size, dtype=torch.float64)) ** 2 - 1
    product = gamma(size + 4) * size
    cholesky = gamma(2 * (size + 4)) * size * 2
    assert excess >= 0.999 * (product + cholesky)


@pytest.mark.parametrize(("dtype", "coarser"), [(torch.float64, 1), (torch.float32, 2**29)])
def test_squaring_carries_the_margins_of_the_product_and_of_the_norm(dtype, coarser):
    size = 64
    excess = squaring_upper_bound(torch.eye(size, dtype=dtype).unsqueeze(0), 1) ** 2 - math.sqrt(size)
    product = gamma((size + 4) * coarser) * size
    norm = 2 * gamma(2 * size**2) * math.sqrt(size)
    assert excess >= 0.995 * (product + norm)


def test_a_guess_that_is_too_low_is_raised_until_cholesky_proves_it(monkeypatch):
    matrix = with_singular_values(torch.linspace(1, 2, 20, dtype=torch.float64))
    monkeypatch.setattr(eigenvalues, "_top_eigenvalue", lambda _: 1e-3)
    bound = spectral_norm_upper_bound(matrix)
    assert 2.0 <= bound <= 2.0 * math.sqrt(8)


@given(size=st.integers(1, 9), batch=st.integers(1, 9), seed=st.integers(0, 10**6))
def test_the_largest_eigenvalue_of_indefinite_hermitian_matrices_is_bounded(size, batch, seed):
    matrices = torch.randn(batch, size, size, dtype=torch.complex128, generator=torch.Generator().manual_seed(seed))
    hermitian = torch.cat([matrices + matrices.mH, -matrices - matrices.mH])
    truth = float(np.linalg.eigvalsh(hermitian.numpy()).max())
    assert_just_above(largest_eigenvalue_upper_bound(hermitian.split(3), truth / 3), truth, 1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 5, 30])
def test_squaring_bounds_the_norm_within_its_overshoot(size, dtype):
    matrices = torch.randn(20, size, size, dtype=dtype) * torch.logspace(-3, 3, 20, dtype=torch.float64)[:, None, None]
    grams = matrices.mH @ matrices
    truth = numpy_norm(matrices)
    bound = math.sqrt(squaring_upper_bound(grams, squarings_for(size)))
    assert_just_above(bound, truth, size ** (1 / 2 ** (squarings_for(size) + 2)) - 1 + 1e-11)


def test_squaring_survives_zero_and_tiny_members_of_a_batch():
    matrices = (
        torch.eye(3, dtype=torch.float64) * torch.tensor([0.0, 1e-320, 1e-160, 1e-40, 1.0])[:, None, None].double()
    )
    assert_just_above(squaring_upper_bound(matrices, 12), 1.0, 1e-3)


@pytest.mark.parametrize(
    ("matrix", "error", "words"),
    [
        (torch.ones(2, 2, dtype=torch.int64), DtypeError, "int64"),
        (torch.ones(2), ShapeError, r"\(2,\)"),
        (torch.ones(2, 0), ShapeError, r"\(2, 0\)"),
        (torch.tensor([[1.0, math.nan]]), NotFiniteError, "1 NaN"),
    ],
)
def test_what_is_not_a_finite_matrix_is_refused(matrix, error, words):
    with pytest.raises(error, match=words):
        spectral_norm_upper_bound(matrix)
