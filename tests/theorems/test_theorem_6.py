"""Theorem 6: in three dimensions too, the transposed filter has the (conjugate) transposed Jacobian."""

import torch
from hypothesis import given, settings

from skewconv.ops import dense_jacobian, transpose_filter
from tests.strategies import cases, check_equal


@settings(max_examples=80)
@given(cases(axes=(3,), kernels=(1, 3), square=False))
def test_transposing_the_filter_transposes_the_jacobian(case):
    jacobian = dense_jacobian(case.weight, case.size, **case.options)
    transposed = dense_jacobian(transpose_filter(case.weight, case.groups), case.size, **case.options)
    check_equal(transposed, jacobian.mH, case)


def test_transposing_twice_changes_nothing():
    for dtype in (torch.float32, torch.complex64):
        weight = torch.randn(4, 3, 3, 1, 3, dtype=dtype)
        # moved, and negated at most
        assert torch.equal(transpose_filter(transpose_filter(weight)), weight)
        assert torch.equal(transpose_filter(transpose_filter(weight, 2), 2), weight)
