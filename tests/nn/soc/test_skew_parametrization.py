"""The normalised skew filter: its free half packed and assembled, the scaling of training, and their derivatives."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from skewconv.nn.power_iteration import fresh_block, power_step
from skewconv.nn.soc.skew_parametrization import (
    FreeHalf,
    assemble,
    free_half,
    packed,
    packed_shape,
    proven_norm,
    scaled_by_estimate,
    splits,
    taps_of,
)
from skewconv.ops import norm_upper_bound, skew_filter
from tests.strategies import cases


@pytest.mark.parametrize("n", range(1, 12))
def test_the_triangle_fills_the_rectangle_exactly_once(n):
    rows, columns = packed_shape(n)
    assert rows * columns == n * (n - 1) // 2
    lower = torch.arange(1.0, n * n + 1).reshape(1, n, n).tril(-1)
    centre = packed(lower)
    assert centre.shape == (1, rows, columns)
    assert sorted(centre.flatten().tolist()) == sorted(v for v in lower.flatten().tolist() if v)
    filter_ = assemble(FreeHalf(None, centre, None, taps_of((1,)), n))
    assert torch.equal(filter_[..., 0], (lower - lower.mT)[0])  # moved


@settings(max_examples=100)
@given(cases(dtypes=(torch.float64, torch.complex64)))
def test_every_skew_filter_comes_back_from_its_free_half_to_the_last_bit(case):
    skew = skew_filter(case.weight, case.groups)
    again = assemble(_half(skew, case.groups))
    assert torch.equal(again, skew)  # moved
    with torch.no_grad():
        assert torch.equal(assemble(_half(skew, case.groups)), skew)  # moved, in place
    assert again.movedim(1, -1).is_contiguous()


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


def _half(raw, groups, *, grad=False):
    taps = taps_of(tuple(raw.shape[2:]))
    free, centre, phase = (part.clone().requires_grad_(grad) for part in free_half(raw, taps, groups))
    return FreeHalf(free if taps.free else None, centre, phase if raw.is_complex() else None, taps, raw.shape[1])


def _values(half):
    return [value for value in half[:3] if value is not None]


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize(("shape", "groups"), CASES)
def test_first_and_second_derivatives_hold_the_vectors_fixed(shape, groups, dtype):
    raw = _filter(shape, groups, dtype)
    vectors = [fresh_block(m) for m in splits(raw, groups)]
    matrices = splits(raw, groups)
    steps = [power_step(m, u) for m, u in zip(matrices, vectors, strict=True)]
    split = int(torch.stack([step.norms.amax() for step in steps]).argmin())
    u, v = steps[split][:2]

    def expected_weight(half):
        raw = assemble(half)
        norm = (u.conj() * (splits(raw, groups)[split] @ v[..., None])[..., 0]).sum(-1).real.amax()
        return raw * (2.0 / math.sqrt(torch.Size(shape[2:]).numel()) / norm)

    ours, twin = _half(raw, groups, grad=True), _half(raw, groups, grad=True)
    weight, _ = scaled_by_estimate(ours, vectors, 2.0)
    expected = expected_weight(twin)
    torch.testing.assert_close(weight, expected)
    cotangent = torch.randn_like(raw)
    fast = torch.autograd.grad(weight, _values(ours), cotangent, retain_graph=True)
    slow = torch.autograd.grad(expected, _values(twin), cotangent, create_graph=True)
    torch.testing.assert_close(fast, slow)
    taped = torch.autograd.grad(weight, _values(ours), cotangent, create_graph=True)
    torch.testing.assert_close(taped, slow)
    second = [
        torch.autograd.grad(sum(g.abs().square().sum() for g in gs), _values(half))
        for gs, half in ((taped, ours), (slow, twin))
    ]
    torch.testing.assert_close(*second)


def test_a_zero_filter_stays_zero():
    raw = torch.zeros(3, 3, 3, 3)
    half = _half(raw, 1, grad=True)
    scaled, vectors = scaled_by_estimate(half, [fresh_block(m) for m in splits(raw, 1)], 2.0)
    assert torch.equal(scaled, raw)  # exact: zero times anything finite
    assert all(bool(u.isfinite().all()) for u in vectors)
    scaled.sum().backward()
    assert all(bool(value.grad.isfinite().all()) for value in _values(half))
