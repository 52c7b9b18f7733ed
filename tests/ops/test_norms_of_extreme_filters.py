"""Norms of filters in low precision, very large, very small or zero."""

import math

import pytest
import torch

from skewconv.ops.filters import skew_filter
from skewconv.ops.norms import (
    norm_estimate,
    norm_upper_bound,
)
from tests.ops.norm_oracles import METHODS, dense_norm


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.complex64])
def test_low_precision_weights_are_bounded_as_the_numbers_they_are(method, dtype):
    weight = skew_filter(torch.randn(3, 3, 3, 3, dtype=dtype))
    double = weight.to(torch.complex128 if weight.is_complex() else torch.float64)
    # repeated: the first thing done is to widen the weight
    assert norm_upper_bound(weight, method) == norm_upper_bound(double, method)
    assert norm_upper_bound(weight.requires_grad_(), method) >= dense_norm(double, (4, 4), "circular")
    assert norm_estimate(weight, 4) == norm_estimate(double, 4)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("exponent", [-1000, -700, 700, 1000])
def test_bounds_and_estimates_scale_with_the_filter(method, exponent):
    for weight in (torch.randn(3, 2, 3, 3).double(), skew_filter(torch.randn(2, 2, 3).double())):
        # exact: a power of two is taken out of the filter before, and put back after, the same computation
        scaled = weight * 2.0**exponent
        assert norm_upper_bound(scaled, method) == math.ldexp(norm_upper_bound(weight, method), exponent)
        assert norm_estimate(scaled, 4) == math.ldexp(norm_estimate(weight, 4), exponent)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("factor", [1e-323, 1e-300, 1e-200, 1e200, 1e300])
def test_extreme_filters_are_still_bounded(method, factor):
    weight = torch.tensor([[[-1.0, 0.0, 1.0]]], dtype=torch.float64) * factor  # symbol 2 i sin(w)
    supremum = 2 * float(weight.max())
    assert supremum <= norm_upper_bound(weight, method) <= max(1.3 * supremum, supremum + 1e-323)
    assert norm_estimate(weight, 3) <= supremum


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
def test_the_zero_filter_has_bound_and_estimate_zero(method, dtype):
    weight = torch.zeros(4, 2, 3, 3, dtype=dtype)
    assert norm_upper_bound(weight, method, groups=2) == 0.0
    assert norm_estimate(weight, 5, groups=2) == 0.0


def test_a_norm_beyond_the_range_is_bounded_by_infinity_and_estimated_by_the_largest_number():
    weight = torch.full((8, 8, 3), 1e308, dtype=torch.float64)
    assert norm_upper_bound(weight) == math.inf
    assert norm_estimate(weight, 5) == torch.finfo(torch.float64).max
