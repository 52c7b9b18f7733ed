"""Theorems 2 (two axes) and 7 (three): the Jacobian is skew exactly when the filter is M - transpose(M)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skewconv.ops import dense_jacobian, skew_filter, split_filter, transpose_filter
from skewconv.ops.convolution import odd_filter
from tests.strategies import cases, check_equal

PLANE = (1, 2)
both_theorems = pytest.mark.parametrize("axes", [PLANE, (3,)], ids=["theorem 2", "theorem 7"])


@both_theorems
@settings(max_examples=50)
@given(st.data())
def test_a_skew_filter_has_a_skew_jacobian(axes, data):
    case = data.draw(cases(axes=axes))
    jacobian = dense_jacobian(skew_filter(case.weight, case.groups), case.size, **case.options)
    check_equal(jacobian, -jacobian.mH, case)


@both_theorems
@settings(max_examples=50)
@given(st.data())
def test_every_skew_filter_splits_into_an_m_and_comes_back_to_the_last_bit(axes, data):
    case = data.draw(cases(axes=axes))
    skew = skew_filter(case.weight, case.groups)
    free = split_filter(skew, case.groups)
    # exact: each entry of the split is an entry of the filter, half of one, or zero
    assert torch.equal(skew_filter(free, case.groups), skew)


@settings(max_examples=50)
@given(cases(axes=PLANE), st.booleans(), st.integers(0, 2**31))
def test_a_filter_whose_jacobian_is_skew_is_a_skew_filter(case, nearly, entry):
    """The other direction: on an image that shows every tap, no entry of J + J^H hides one of L + transpose(L).

    The filters are arbitrary ones, and skew ones with one entry spoiled.
    """
    weight = odd_filter(case.weight)
    if nearly:
        weight = skew_filter(weight, case.groups)
        weight.view(-1)[entry % weight.numel()] += 1
    large = tuple(2 * d * (k // 2) + 1 for d, k in zip(case.dilation, weight.shape[2:], strict=True))
    jacobian = dense_jacobian(weight, large, **case.options)
    asymmetry = _largest_part(weight + transpose_filter(weight, case.groups))
    assert asymmetry > 0
    # exact: each entry of a dense Jacobian is one tap
    assert _largest_part(jacobian + jacobian.mH) == asymmetry


def _largest_part(tensor: torch.Tensor) -> float:
    return float((torch.view_as_real(tensor) if tensor.is_complex() else tensor).abs().max())


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
