"""Upper bounds are above the dense norm and estimates below it, for every filter, image, padding and dilation."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from skewconv.errors import ArgumentError, DtypeError, NotFiniteError, ShapeError
from skewconv.ops.convolution import skew_filter
from skewconv.ops.engines.dense_engine import dense_jacobian
from skewconv.ops.norms import norm_estimate, norm_upper_bound, norm_upper_bound_at

METHODS = ["symbol", "gram", "fantastic-four"]
PADDINGS = ["zeros", "circular"]
each_method = pytest.mark.parametrize("method", METHODS)


def dense_norm(weight: Tensor, size, padding_mode="zeros", dilation=1, groups=1) -> float:
    return float(np.linalg.norm(dense_jacobian(weight, size, padding_mode, dilation, groups).numpy(), 2))


@st.composite
def filters(draw):
    """(weight, groups): real and complex, one to three axes, odd and even kernels, skew or any channels."""
    axes = draw(st.integers(1, 3))
    kernel = draw(st.tuples(*[st.integers(1, 5 if axes == 1 else 4 if axes == 2 else 3)] * axes))
    groups = draw(st.integers(1, 3))
    rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    dtype = draw(st.sampled_from([torch.float64, torch.complex128]))
    skew = draw(st.booleans())
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    shape = (groups * rows, rows if skew else columns, *kernel)
    weight = torch.randn(shape, dtype=dtype, generator=generator)
    if draw(st.booleans()):  # sparse
        weight = weight * (torch.rand(shape, generator=generator) < 0.4)
    return (skew_filter(weight, groups) if skew else weight), groups


def small_sizes(weight: Tensor):
    return {3: [(1,), (4,), (9,)], 4: [(1, 2), (4, 3)], 5: [(2, 1, 2), (2, 3, 2)]}[weight.dim()]


@settings(max_examples=80)
@given(filters(), st.sampled_from(METHODS), st.integers(1, 3))
def test_upper_bounds_are_above_the_dense_norm(filter_and_groups, method, dilation):
    weight, groups = filter_and_groups
    bound = norm_upper_bound(weight, method, groups=groups)
    for size, padding_mode in itertools.product(small_sizes(weight), PADDINGS):
        assert bound >= dense_norm(weight, size, padding_mode, dilation, groups)


@settings(max_examples=50)
@given(filters(), st.integers(0, 2))
def test_upper_bounds_on_coarse_grids_are_above_the_dense_norm(filter_and_groups, extra):
    weight, groups = filter_and_groups
    grid = tuple(k + extra for k in weight.shape[2:])
    bounds = [norm_upper_bound(weight, method, groups=groups, grid=grid) for method in ("symbol", "gram")]
    for size, padding_mode in itertools.product(small_sizes(weight), PADDINGS):
        assert min(bounds) >= dense_norm(weight, size, padding_mode, 1, groups)


@settings(max_examples=30)
@given(filters(), st.sampled_from(PADDINGS), st.integers(1, 2), st.integers(1, 20))
def test_estimates_are_below_the_dense_norm(filter_and_groups, padding_mode, dilation, iterations):
    weight, groups = filter_and_groups
    size = {3: (9,), 4: (4, 5), 5: (2, 3, 2)}[weight.dim()]
    truth = dense_norm(weight, size, padding_mode, dilation, groups)
    estimate = norm_estimate(weight, size, padding_mode, iterations, dilation=dilation, groups=groups)
    assert 0 <= estimate <= truth * (1 + 1e-9)
    assert estimate > 0 or truth == 0


@pytest.mark.parametrize("padding_mode", PADDINGS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("kernel", [(3,), (4,), (3, 3), (2, 3), (3, 2, 3)])
def test_many_iterations_bring_the_estimate_to_the_dense_norm(kernel, dtype, padding_mode):
    weight = torch.randn(6, 2, *kernel, dtype=dtype)
    size = {1: (7,), 2: (4, 5), 3: (3, 3, 3)}[len(kernel)]
    truth = dense_norm(weight, size, padding_mode, groups=2)
    assert norm_estimate(weight, size, padding_mode, 300, groups=2) >= 0.99 * truth


def test_estimates_grow_with_the_iterations_and_nothing_touches_the_global_random_numbers():
    weight, wide = torch.randn(3, 3, 3, 3), torch.randn(300, 300, 1)  # large enough for Lanczos' random vector
    state = torch.get_rng_state()
    estimates = [norm_estimate(weight, 6, iterations=n) for n in (1, 2, 5, 20, 100)]
    assert estimates == sorted(estimates)
    bound = norm_upper_bound(wide, "fantastic-four")
    assert torch.equal(torch.get_rng_state(), state)  # moved
    torch.manual_seed(99)
    assert norm_estimate(weight, 6, iterations=5) == estimates[2]  # repeated
    assert norm_estimate(weight, 6, iterations=5, seed=1) != estimates[2]
    assert norm_upper_bound(wide, "fantastic-four") == bound  # repeated


@each_method
@pytest.mark.parametrize("skew", [True, False])
def test_the_bound_of_groups_is_the_maximum_over_the_groups(method, skew):
    blocks = torch.randn(3, 4, 4, 3, 3, dtype=torch.float64) * torch.tensor([1.0, 5.0, 2.0])[:, None, None, None, None]
    blocks = torch.stack([skew_filter(block) for block in blocks]) if skew else blocks
    expanded = torch.zeros(12, 12, 3, 3, dtype=torch.float64)
    for i, block in enumerate(blocks):
        expanded[4 * i : 4 * i + 4, 4 * i : 4 * i + 4] = block
    grid = None if method == "fantastic-four" else 8
    bound = norm_upper_bound(blocks.flatten(0, 1), method, groups=3, grid=grid)
    whole = norm_upper_bound(expanded, method, grid=grid)
    assert bound == pytest.approx(max(norm_upper_bound(b, method, grid=grid) for b in blocks), rel=1e-12)
    assert bound <= whole * (1 + 1e-12)
    assert bound == pytest.approx(whole, rel=1e-2 if method == "gram" else 1e-11)


def test_bounds_and_estimates_work_in_inference_mode():
    with torch.inference_mode():
        weight = skew_filter(torch.randn(3, 3, 3, 3))
        assert norm_estimate(weight, 5) <= min(norm_upper_bound(weight, method) for method in METHODS)


@pytest.mark.parametrize("padding_mode", PADDINGS)
@pytest.mark.parametrize("dilation", [1, 2])
def test_the_bound_at_one_size_is_above_the_norm_and_not_above_the_bound_for_all(padding_mode, dilation):
    weight = torch.randn(4, 2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    skew = skew_filter(weight, groups=2)
    for size in ((1, 1), (2, 3), (5, 5)):
        if padding_mode == "circular" and min(size) <= 2 * dilation:
            continue
        options = {"padding_mode": padding_mode, "dilation": dilation, "groups": 2}
        norm, bound = dense_norm(skew, size, **options), norm_upper_bound_at(skew, size, **options)
        assert norm <= bound <= norm_upper_bound(skew, groups=2) * (1 + 1e-9)
        if padding_mode == "circular" and dilation == 1:
            assert bound <= norm * (1 + 1e-9)


@each_method
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.complex64])
def test_low_precision_weights_are_bounded_as_the_numbers_they_are(method, dtype):
    weight = skew_filter(torch.randn(3, 3, 3, 3, dtype=dtype))
    double = weight.to(torch.complex128 if weight.is_complex() else torch.float64)
    # repeated: the first thing done is to widen the weight
    assert norm_upper_bound(weight, method) == norm_upper_bound(double, method)
    assert norm_upper_bound(weight.requires_grad_(), method) >= dense_norm(double, (4, 4), "circular")
    assert norm_estimate(weight, 4) == norm_estimate(double, 4)


@each_method
@pytest.mark.parametrize("exponent", [-1000, -700, 700, 1000])
def test_bounds_and_estimates_scale_with_the_filter(method, exponent):
    for weight in (torch.randn(3, 2, 3, 3).double(), skew_filter(torch.randn(2, 2, 3).double())):
        # exact: a power of two is taken out of the filter before, and put back after, the same computation
        scaled = weight * 2.0**exponent
        assert norm_upper_bound(scaled, method) == math.ldexp(norm_upper_bound(weight, method), exponent)
        assert norm_estimate(scaled, 4) == math.ldexp(norm_estimate(weight, 4), exponent)


@each_method
@pytest.mark.parametrize("factor", [0.0, 1e-323, 1e-300, 1e-200, 1e200, 1e300])
def test_extreme_filters_are_still_bounded(method, factor):
    weight = torch.tensor([[[-1.0, 0.0, 1.0]]], dtype=torch.float64) * factor  # symbol 2 i sin(w)
    supremum = 2 * float(weight.max())
    assert supremum <= norm_upper_bound(weight, method) <= max(1.3 * supremum, supremum + (factor and 1e-323))
    assert norm_estimate(weight, 3) <= supremum


def test_a_norm_beyond_the_range_is_bounded_by_infinity_and_estimated_by_the_largest_number():
    weight = torch.full((8, 8, 3), 1e308, dtype=torch.float64)
    assert norm_upper_bound(weight) == math.inf
    assert norm_estimate(weight, 5) == torch.finfo(torch.float64).max


WEIGHT = torch.ones(4, 2, 3, 3)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: norm_upper_bound(WEIGHT, "svd"), ArgumentError, "'symbol', 'fantastic-four', 'gram'.*'svd'"),
        (lambda: norm_upper_bound(WEIGHT, grid=2), ArgumentError, "grid=2.*at least k.*raise it"),
        (lambda: norm_upper_bound(WEIGHT, grid=(8, 2)), ArgumentError, r"grid=\(8, 2\)"),
        (lambda: norm_upper_bound(WEIGHT, grid=(8, 8, 8)), ArgumentError, "grid must be"),
        (lambda: norm_upper_bound(WEIGHT, "fantastic-four", grid=8), ArgumentError, "grid=8 has no meaning"),
        (lambda: norm_upper_bound(WEIGHT[0, 0]), ShapeError, r"\(3, 3\)"),
        (lambda: norm_upper_bound(WEIGHT.long()), DtypeError, "int64"),
        (lambda: norm_upper_bound(WEIGHT * math.nan), NotFiniteError, "NaN"),
        (lambda: norm_upper_bound(WEIGHT[:0]), ShapeError, "empty"),
        (lambda: norm_upper_bound(WEIGHT, groups=3), ShapeError, "groups=3 does not divide"),
        (lambda: norm_estimate(WEIGHT, (4, 4, 4)), ArgumentError, "size"),
        (lambda: norm_estimate(WEIGHT, 4, iterations=1.5), ArgumentError, "iterations.*1.5"),
        (lambda: norm_estimate(WEIGHT, 4, "reflect"), ArgumentError, "'reflect'.*skew"),
        (lambda: norm_estimate(WEIGHT, 4, dilation=0), ArgumentError, "dilation"),
        (lambda: norm_estimate(WEIGHT.long(), 4), DtypeError, "int64"),
        (lambda: norm_upper_bound_at(torch.randn(2, 2, 2, 2), 4), ArgumentError, "odd sizes"),
    ],
)
def test_wrong_arguments_are_refused_by_name(call, error, words):
    with pytest.raises(error, match=words):
        call()
