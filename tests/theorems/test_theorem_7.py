"""Theorem 7: in three dimensions too, skew Jacobians are exactly those of M - transpose(M)."""

import torch
from hypothesis import given, settings

from skewconv.ops import dense_jacobian, skew_filter, split_filter
from tests.strategies import cases, check_equal

SPACE = (3,)


@settings(max_examples=80)
@given(cases(axes=SPACE))
def test_a_skew_filter_has_a_skew_jacobian(case):
    jacobian = dense_jacobian(skew_filter(case.weight, case.groups), case.size, **case.options)
    check_equal(jacobian, -jacobian.mH, case)


@settings(max_examples=80)
@given(cases(axes=SPACE))
def test_every_skew_filter_splits_into_an_m_and_comes_back_to_the_last_bit(case):
    skew = skew_filter(case.weight, case.groups)
    # exact: each entry of the split is an entry of the filter, half of one, or zero
    assert torch.equal(skew_filter(split_filter(skew, case.groups), case.groups), skew)
