"""Theorem 5: every skew-Hermitian A has a skew-Hermitian B with exp(B) = exp(A) and norm at most pi."""

import math

import numpy as np
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skewconv.ops import wrap_angles


@settings(max_examples=100)
@given(st.integers(1, 8), st.floats(0.01, 30), st.integers(0, 2**31))
def test_the_wrapped_generator_is_skew_hermitian_short_and_equivalent(n, scale, seed):
    matrix = torch.randn(n, n, dtype=torch.complex128, generator=torch.Generator().manual_seed(seed))
    A = scale * (matrix - matrix.mH)
    B = wrap_angles(A)
    assert torch.equal(B, -B.mH)  # exact: B is a difference of a matrix and its adjoint
    assert np.linalg.norm(B.numpy(), 2) <= math.pi
    difference = scipy.linalg.expm(A.numpy()) - scipy.linalg.expm(B.numpy())
    assert np.abs(difference).max() <= 1e-13 * max(1.0, float(torch.linalg.matrix_norm(A, 2)))


def test_a_phase_of_exactly_pi_is_kept():
    A = torch.diag(torch.tensor([1j * math.pi, -1j * math.pi, 3j * math.pi, 0.5j], dtype=torch.complex128))
    B = wrap_angles(A)
    assert np.linalg.norm(B.numpy(), 2) <= math.pi
    torch.testing.assert_close(torch.matrix_exp(B), torch.matrix_exp(A), atol=1e-13, rtol=0)
