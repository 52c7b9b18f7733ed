"""Theorems 1 (two axes) and 6 (three): the transposed filter has the (conjugate) transposed Jacobian."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import correlate

from skewconv.ops import dense_jacobian, transpose_filter
from skewconv.ops.convolution import convolve
from skewconv.ops.engines.dense_engine import dense_matrix
from tests.strategies import ROUNDING, cases, check_equal


@pytest.mark.parametrize("axes", [(1, 2), (3,)], ids=["theorem 1", "theorem 6"])
@settings(max_examples=50)
@given(st.data())
def test_transposing_the_filter_transposes_the_jacobian(axes, data):
    case = data.draw(cases(axes=axes, kernels=(1, 3, 5), square=False))
    jacobian = dense_jacobian(case.weight, case.size, **case.options)
    transposed = dense_jacobian(transpose_filter(case.weight, case.groups), case.size, **case.options)
    check_equal(transposed, jacobian.mH, case)


@settings(max_examples=50)
@given(cases(square=False))
def test_the_dense_jacobian_is_the_matrix_of_the_convolution(case):
    applied = dense_matrix(
        lambda x: convolve(x, case.weight, **case.options), (case.channels, *case.size), dtype=case.weight.dtype
    )
    dense = dense_jacobian(case.weight, case.size, **case.options)
    torch.testing.assert_close(applied, dense, atol=ROUNDING[case.weight.dtype], rtol=0)


def test_the_dense_jacobian_agrees_with_scipy_on_zero_padding():
    weight, image = torch.randn(3, 2, 3, 5, dtype=torch.float64), torch.randn(2, 6, 7, dtype=torch.float64)
    ours = (dense_jacobian(weight, (6, 7)) @ image.flatten()).reshape(3, 6, 7)
    theirs = [sum(correlate(image[i].numpy(), weight[o, i].numpy(), mode="same") for i in range(2)) for o in range(3)]
    np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-13)


def test_transposing_twice_changes_nothing():
    for dtype in (torch.float32, torch.complex64):
        weight = torch.randn(4, 3, 3, 1, 3, dtype=dtype)
        # moved, and negated at most
        assert torch.equal(transpose_filter(transpose_filter(weight)), weight)
        assert torch.equal(transpose_filter(transpose_filter(weight, 2), 2), weight)
