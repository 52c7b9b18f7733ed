"""Theorems 2 (two axes) and 7 (three): the Jacobian is skew exactly when the filter is M - transpose(M)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skewconv.ops import dense_jacobian, skew_filter, split_filter, transpose_filter
from tests.strategies import cases, check_equal

PLANE = (1, 2)
both_theorems = pytest.mark.parametrize("axes", [PLANE, (3,)], ids=["theorem 2", "theorem 7"])


@both_theorems
@settings(max_examples=120)
@given(st.data())
def test_a_skew_filter_has_a_skew_jacobian(axes, data):
    case = data.draw(cases(axes=axes))
    jacobian = dense_jacobian(skew_filter(case.weight, case.groups), case.size, **case.options)
    check_equal(jacobian, -jacobian.mH, case)


@both_theorems
@settings(max_examples=120)
@given(st.data())
def test_every_skew_filter_splits_into_an_m_and_comes_back_to_the_last_bit(axes, data):
    case = data.draw(cases(axes=axes))
    skew = skew_filter(case.weight, case.groups)
    free = split_filter(skew, case.groups)
    # exact: each entry of the split is an entry of the filter, half of one, or zero
    assert torch.equal(skew_filter(free, case.groups), skew)


@settings(max_examples=60)
@given(cases(axes=PLANE, kernels=(1, 3)))
def test_a_filter_whose_jacobian_is_skew_is_a_skew_filter(case):
    """The other direction: on an image that shows every tap, a skew Jacobian leaves no other filter."""
    skew = skew_filter(case.weight, case.groups)
    large = tuple(2 * d * (k // 2) + 1 for d, k in zip(case.dilation, skew.shape[2:], strict=True))
    spoiled = skew.clone()
    spoiled.view(-1)[0] += 1
    jacobian = dense_jacobian(spoiled, large, **case.options)
    assert not torch.equal(jacobian, -jacobian.mH)
    assert not torch.equal(spoiled, -transpose_filter(spoiled, case.groups))


@settings(max_examples=60)
@given(cases(axes=PLANE, kernels=(2, 3, 4), dtypes=(torch.float64, torch.complex128)))
def test_even_kernels_are_padded_so_that_the_jacobian_is_the_skew_part_of_the_even_one(case):
    jacobian = dense_jacobian(case.weight, case.size, **case.options)
    skew = dense_jacobian(skew_filter(case.weight, case.groups), case.size, **case.options)
    torch.testing.assert_close(skew, jacobian - jacobian.mH, atol=1e-14, rtol=0)


def test_only_half_of_a_skew_filter_is_free():
    for dtype, diagonal in ((torch.float64, 0), (torch.complex128, 4)):
        free = split_filter(skew_filter(torch.randn(4, 4, 3, 3, dtype=dtype)))
        assert int((free != 0).sum()) == (4 * 4 * 9 - 4) // 2 + diagonal
