"""The training-time scaling and its derivatives, against the same thing on the autograd tape."""

import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from skewconv.nn.normalisation import fresh_vectors, power_step, proven_norm, scaled_by_estimate, splits
from skewconv.ops import norm_upper_bound, skew_filter


def _filter(shape, groups, dtype):
    return skew_filter(torch.randn(*shape, dtype=dtype), groups).movedim(1, -1).contiguous().movedim(-1, 1)


CASES = [((4, 4, 3), 1), ((4, 4, 3, 3), 1), ((6, 3, 3, 3), 2), ((2, 2, 3, 1, 3), 1), ((5, 5, 1, 1), 1)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize(("shape", "groups"), CASES)
def test_the_splits_are_views_whose_smallest_norm_is_the_fantastic_four(shape, groups, dtype):
    raw = _filter(shape, groups, dtype)
    matrices = splits(raw, groups)
    assert all(m.data_ptr() == raw.data_ptr() for m in matrices)
    smallest = min(np.linalg.norm(m.numpy(), 2, axis=(1, 2)).max() for m in matrices)
    expected = math.sqrt(torch.Size(shape[2:]).numel()) * smallest
    assert proven_norm(raw, groups)[0] == pytest.approx(expected, rel=1e-11)
    if len(shape) < 5:
        assert norm_upper_bound(raw, "fantastic-four", groups=groups) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize(("shape", "groups"), CASES)
def test_first_and_second_derivatives_hold_the_vectors_fixed(shape, groups, dtype):
    raw = _filter(shape, groups, dtype)
    vectors = fresh_vectors(raw, groups)
    steps = [power_step(m, u) for m, u in zip(splits(raw, groups), vectors, strict=True)]
    norms = [
        (u.conj() * (m @ v[..., None])[..., 0]).sum(-1).real.amax()
        for m, (u, v) in zip(splits(raw, groups), steps, strict=True)
    ]
    split = int(torch.stack(norms).argmin())
    u, v = steps[split]
    leaf = raw.detach().clone().requires_grad_()
    scaled, _ = scaled_by_estimate(leaf, vectors, groups, 2.0)
    cotangent = torch.randn_like(raw)
    (grad,) = torch.autograd.grad(scaled, leaf, cotangent, create_graph=True)

    def on_tape(raw):
        norm = (u.conj() * (splits(raw, groups)[split] @ v[..., None])[..., 0]).sum(-1).real.amax()
        return raw * (2.0 / math.sqrt(torch.Size(shape[2:]).numel()) / norm)

    twin = raw.detach().clone().requires_grad_()
    (expected,) = torch.autograd.grad(on_tape(twin), twin, cotangent, create_graph=True)
    torch.testing.assert_close(scaled, on_tape(twin))
    torch.testing.assert_close(grad, expected)
    second = torch.autograd.grad(grad.abs().square().sum(), leaf)[0]
    torch.testing.assert_close(second, torch.autograd.grad(expected.abs().square().sum(), twin)[0])
    assert gradcheck(on_tape, twin, fast_mode=True)
    assert gradgradcheck(on_tape, twin, fast_mode=True)


def test_a_zero_filter_stays_zero():
    raw = torch.zeros(3, 3, 3, 3, requires_grad=True)
    scaled, vectors = scaled_by_estimate(raw, fresh_vectors(raw.detach(), 1), 1, 2.0)
    assert torch.equal(scaled, torch.zeros_like(raw))
    assert all(bool(u.isfinite().all()) for u in vectors)
    scaled.sum().backward()
    assert bool(raw.grad.isfinite().all())
