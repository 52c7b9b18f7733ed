"""Estimates of norms: they grow towards the dense norm, and say the same each time."""

import pytest
import torch

from skewconv.ops.norms import (
    norm_estimate,
)
from tests.ops.norm_oracles import PADDINGS, dense_norm


@pytest.mark.parametrize("padding_mode", PADDINGS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("kernel", [(3,), (4,), (3, 3), (2, 3), (3, 2, 3)])
def test_many_iterations_bring_the_estimate_to_the_dense_norm(kernel, dtype, padding_mode):
    weight = torch.randn(6, 2, *kernel, dtype=dtype)
    size = {1: (7,), 2: (4, 5), 3: (3, 3, 3)}[len(kernel)]
    truth = dense_norm(weight, size, padding_mode, groups=2)
    assert norm_estimate(weight, size, padding_mode, 300, groups=2) >= 0.99 * truth


def test_the_estimate_is_deterministic_and_leaves_the_global_random_numbers_alone():
    weight = torch.randn(3, 3, 3, 3)
    state = torch.get_rng_state()
    first = norm_estimate(weight, 6, iterations=3)
    assert torch.equal(torch.get_rng_state(), state)  # moved
    torch.manual_seed(99)
    assert norm_estimate(weight, 6, iterations=3) == first  # repeated
    assert norm_estimate(weight, 6, iterations=3, seed=1) != first


def test_the_estimate_grows_with_the_iterations():
    weight = torch.randn(3, 3, 3, 3)
    estimates = [norm_estimate(weight, 6, iterations=n) for n in (1, 2, 5, 20, 100)]
    assert estimates == sorted(estimates)
