"""Upper bounds are above the dense norm and estimates below it, for every filter, image, padding and dilation."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from skewconv.ops.dense_matrices import dense_jacobian
from skewconv.ops.filters import skew_filter
from skewconv.ops.norms import (
    norm_estimate,
    norm_upper_bound,
    norm_upper_bound_at,
)
from tests.ops.norm_oracles import METHODS, PADDINGS, dense_norm


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
    sparse = draw(st.booleans())
    if sparse:
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
    options = {"dilation": dilation, "groups": groups}
    estimate = norm_estimate(weight, size, padding_mode, iterations, **options)
    assert 0 <= estimate <= truth * (1 + 1e-9)
    assert estimate > 0 or truth == 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("skew", [True, False])
def test_the_bound_of_groups_is_the_maximum_over_the_groups(method, skew):
    blocks = torch.randn(3, 4, 4, 3, 3, dtype=torch.float64) * torch.tensor([1.0, 5.0, 2.0])[:, None, None, None, None]
    blocks = torch.stack([skew_filter(block) for block in blocks]) if skew else blocks
    expanded = torch.zeros(12, 12, 3, 3, dtype=torch.float64)
    for i, block in enumerate(blocks):
        expanded[4 * i : 4 * i + 4, 4 * i : 4 * i + 4] = block
    bound = norm_upper_bound(blocks.flatten(0, 1), method, groups=3, grid=None if method == "fantastic-four" else 8)
    largest = max(norm_upper_bound(b, method, grid=None if method == "fantastic-four" else 8) for b in blocks)
    whole = norm_upper_bound(expanded, method, grid=None if method == "fantastic-four" else 8)
    assert bound == pytest.approx(largest, rel=1e-12)
    assert bound <= whole * (1 + 1e-12)
    assert bound == pytest.approx(whole, rel=1e-2 if method == "gram" else 1e-11)


def test_the_upper_bound_leaves_the_global_random_numbers_alone():
    weight = torch.randn(300, 300, 1)  # large enough for Lanczos, which starts from a random vector
    state = torch.get_rng_state()
    assert norm_upper_bound(weight, "fantastic-four") == norm_upper_bound(weight, "fantastic-four")  # repeated
    assert torch.equal(torch.get_rng_state(), state)  # moved


def test_bounds_and_estimates_work_in_inference_mode():
    with torch.inference_mode():
        weight = skew_filter(torch.randn(3, 3, 3, 3))
        assert norm_estimate(weight, 5) <= min(norm_upper_bound(weight, method) for method in METHODS)


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
@pytest.mark.parametrize("dilation", [1, 2])
def test_the_bound_at_one_size_is_above_the_norm_and_not_above_the_bound_for_all(padding_mode, dilation):
    weight = torch.randn(4, 2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    skew = skew_filter(weight, groups=2)
    for size in ((1, 1), (2, 3), (5, 5)):
        if padding_mode == "circular" and min(size) <= 2 * dilation:
            continue
        options = {"padding_mode": padding_mode, "dilation": dilation, "groups": 2}
        norm = float(torch.linalg.matrix_norm(dense_jacobian(skew, size, **options), 2))
        bound = norm_upper_bound_at(skew, size, **options)
        assert norm <= bound <= norm_upper_bound(skew, groups=2) * (1 + 1e-9)
        if padding_mode == "circular" and dilation == 1:
            assert bound <= norm * (1 + 1e-9)
