"""Theorems 4 (real) and 5 (complex): every skew A has a skew B with exp(B) = exp(A) and norm at most pi."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skewconv.errors import DtypeError, NotFiniteError, NotSkewError, ShapeError
from skewconv.ops import wrap_angles


def _random_skew(n: int, scale: float, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    matrix = torch.randn(n, n, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    return scale * (matrix - matrix.mH)


def _check_equivalent(A: torch.Tensor, B: torch.Tensor, tol: float) -> None:
    assert B.dtype == A.dtype
    assert B.shape == A.shape
    assert torch.equal(B, -B.mH)  # exact: B is a difference of a matrix and its adjoint
    assert np.linalg.norm(B.numpy(), 2) <= math.pi
    difference = scipy.linalg.expm(A.numpy()) - scipy.linalg.expm(B.numpy())
    assert np.abs(difference).max() <= tol * max(1.0, float(torch.linalg.matrix_norm(A, 2)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=["theorem 4", "theorem 5"])
@settings(max_examples=100)
@given(st.integers(1, 9), st.floats(0.01, 30), st.integers(0, 2**31))
def test_the_wrapped_generator_is_skew_short_and_equivalent_in_its_own_field(dtype, n, scale, seed):
    A = _random_skew(n, scale, seed, dtype)
    _check_equivalent(A, wrap_angles(A), 1e-13)


@pytest.mark.parametrize("turns", [1, 3, 5])
@pytest.mark.parametrize("planes", [1, 2, 3])
@pytest.mark.parametrize("nudge", [-1e-12, -1e-15, 0.0, 1e-15, 1e-12])
def test_planes_turned_by_exactly_pi_stay_real_planes(turns, planes, nudge):
    """Several planes share the angle pi, each an ulp or so off it to either side, in a random basis."""
    basis = torch.linalg.qr(_random_skew(2 * planes + 1, 1.0, 3) + torch.eye(2 * planes + 1, dtype=torch.float64))[0]
    middle = torch.zeros(2 * planes + 1, 2 * planes + 1, dtype=torch.float64)
    for p in range(planes):
        angle = turns * math.pi + (-1) ** p * nudge
        middle[2 * p, 2 * p + 1], middle[2 * p + 1, 2 * p] = angle, -angle
    rotated = basis @ middle @ basis.T
    A = (rotated - rotated.T) / 2
    _check_equivalent(A, wrap_angles(A), 1e-13)


def test_a_phase_of_exactly_pi_is_kept():
    A = torch.diag(torch.tensor([1j * math.pi, -1j * math.pi, 3j * math.pi, 0.5j], dtype=torch.complex128))
    _check_equivalent(A, wrap_angles(A), 1e-13)


def test_batches_are_wrapped_matrix_by_matrix_in_their_own_dtype():
    A = torch.stack([_random_skew(4, s, 1) for s in (0.1, 3.0, 20.0)]).reshape(3, 1, 4, 4)
    together = wrap_angles(A)
    for index in range(3):
        # One product of matrices and a batch of them may round otherwise.
        torch.testing.assert_close(together[index, 0], wrap_angles(A[index, 0]), atol=1e-13, rtol=0)
    single = wrap_angles(A.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(
        torch.matrix_exp(single.double()), torch.matrix_exp(A.float().double()), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize(
    ("matrix", "error", "words"),
    [
        (torch.ones(2, 2), NotSkewError, "A - A.mH"),
        (torch.zeros(2, 3), ShapeError, r"\(2, 3\)"),
        (torch.zeros(3), ShapeError, r"\(3,\)"),
        (torch.zeros(0, 0), ShapeError, "non-empty"),
        (torch.full((2, 2), math.nan), NotFiniteError, "NaN"),
        (torch.zeros(2, 2, dtype=torch.int64), DtypeError, "int64"),
    ],
)
def test_what_is_not_a_skew_matrix_is_refused(matrix, error, words):
    with pytest.raises(error, match=words):
        wrap_angles(matrix)
