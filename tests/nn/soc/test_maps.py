"""SOC and SUC: parity with the paper, freshness of the normalisation, gradients of the parameters."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from skewconv import nn as snn
from skewconv.nn.power_iteration import LastStep
from skewconv.nn.soc.skew_parametrization import assemble, proven_norm, scaled_by_estimate
from skewconv.ops import dense_matrix, norm_upper_bound, skew_filter

DOUBLE = torch.float64


def algorithm_1(x, M, terms, c_out, factor):
    """Algorithm 1 and Section 6.1, line by line from the paper; shares nothing with the library."""
    c_in = x.shape[1]
    if c_in < c_out:
        x = F.pad(x, (0, 0, 0, 0, 0, c_out - c_in))
    L = M - M.transpose(0, 1).flip(2, 3)
    m, _, h, w = L.shape
    R = L.permute(0, 2, 1, 3).reshape(m * h, m * w)
    S = L.permute(0, 3, 1, 2).reshape(m * w, m * h)
    T = L.reshape(m, m * h * w)
    U = L.permute(0, 2, 3, 1).reshape(m * h * w, m)
    L = factor * L / min(np.linalg.norm(A.numpy(), 2) for A in (R, S, T, U))
    y, factorial = x, 1
    for j in range(2, terms + 1):
        x = F.conv2d(x, L, padding=(h // 2, w // 2))
        factorial = factorial * (j - 1)
        y = y + x / factorial
    return y[:, :c_out] if c_in > c_out else y


@pytest.mark.parametrize(("c_in", "c_out"), [(5, 5), (2, 6), (6, 2)])
@pytest.mark.parametrize(("kernel", "factor"), [((3, 3), 0.7), ((3, 5), 0.7), ((1, 1), 1.0)])
@pytest.mark.parametrize("terms", [6, 12])
def test_it_is_algorithm_1(c_in, c_out, kernel, factor, terms):
    M = torch.randn(max(c_in, c_out), max(c_in, c_out), *kernel, dtype=DOUBLE)
    x = torch.randn(3, c_in, 6, 7, dtype=DOUBLE)
    layer = snn.SOC2d.from_filter(M, c_in, c_out, bias=False, series="taylor", eval_degree=terms - 1).eval()
    torch.testing.assert_close(layer(x), algorithm_1(x, M, terms, c_out, factor), atol=1e-10, rtol=0)


def test_stride_is_downsampling_and_then_algorithm_1():
    M, x = torch.randn(8, 8, 3, 3, dtype=DOUBLE), torch.randn(2, 2, 6, 6, dtype=DOUBLE)
    layer = snn.SOC2d.from_filter(M, 2, 5, stride=2, bias=False, series="taylor", eval_degree=11).eval()
    expected = algorithm_1(F.pixel_unshuffle(x, 2), M, 12, 5, 0.7)
    torch.testing.assert_close(layer(x), expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize(("c_in", "c_out", "stride"), [(4, 4, 1), (3, 8, 1), (3, 12, 2), (16, 64, 1)])
def test_in_training_it_is_algorithm_1_from_the_first_pass_on(c_in, c_out, stride):
    m = max(c_in * stride**2, c_out)
    M, x = torch.randn(m, m, 3, 3, dtype=DOUBLE), torch.randn(2, c_in, 6, 6, dtype=DOUBLE)
    options = {"bias": False, "series": "taylor", "train_degree": 5, "eval_degree": 11}
    layer = snn.SOC2d.from_filter(M, c_in, c_out, stride=stride, **options)
    down = F.pixel_unshuffle(x, stride) if stride > 1 else x
    expected = algorithm_1(down, M, 6, c_out, 0.7)
    assert float((layer(x) - expected).detach().norm()) <= 1e-3 * float(expected.norm())


def test_the_defaults_are_the_papers_norm_bounds_and_a_small_error():
    assert snn.SOC2d(2, 2, 3).norm_bound == pytest.approx(2.1)
    assert snn.SOC2d(2, 2, (3, 2)).norm_bound == pytest.approx(0.7 * math.sqrt(6))
    assert snn.SOC1d(2, 2, 1).norm_bound == 1.0
    assert snn.SOC3d(2, 2, 3).norm_bound == pytest.approx(0.7 * math.sqrt(27))
    layer = snn.SOC2d(2, 2, 3)
    paper = snn.SOC2d(2, 2, 3, series="taylor", train_degree=5, eval_degree=11)
    assert layer.polynomial(training=True).degree == 4
    assert layer.polynomial(training=True).truncation_error <= paper.polynomial(training=True).truncation_error
    assert layer.polynomial().truncation_error <= paper.polynomial().truncation_error


# Freshness: after anything that changes the weights, what is proven still holds against the dense oracle.


def _scaled_down_through_data(layer):
    for p in layer.parameters():
        p.data.mul_(1e-6)


def _reinitialised(layer):
    nn.init.uniform_(layer.free, 0.9, 1.0)
    nn.init.zeros_(layer.centre)


def _loaded_with_vectors_of_other_weights(layer):
    state = copy.deepcopy(layer).state_dict()
    state["free"] = torch.ones_like(state["free"])
    layer.load_state_dict(state, strict=True)


def _optimiser_step(layer):
    layer.train()
    layer(torch.randn(2, layer.in_channels, 4, 4)).square().sum().backward()
    torch.optim.SGD(layer.parameters(), lr=100.0).step()
    layer.eval()


@pytest.mark.parametrize("before", [False, True], ids=["straight-after-construction", "after-a-forward"])
@pytest.mark.parametrize(
    "change",
    [_scaled_down_through_data, _reinitialised, _loaded_with_vectors_of_other_weights, _optimiser_step],
    ids=lambda f: f.__name__.strip("_"),
)
def test_the_gain_holds_after_any_change_of_the_weights(change, before):
    layer = snn.SOC2d(4, 4, 3, bias=False, norm_bound=3.0).eval()
    if before:
        layer(torch.randn(1, 4, 4, 4))
    change(layer)
    matrix = dense_matrix(layer, (4, 4, 4), dtype=torch.float32).detach().double().numpy()
    values = np.linalg.svd(matrix, compute_uv=False)
    low, high = layer.gain_bounds()
    assert high <= 1.0
    assert values.max() <= high + 2e-6
    assert values.min() >= (low or layer.polynomial().gain[0]) - 2e-6
    assert norm_upper_bound(layer.weight.detach(), "fantastic-four") <= layer.proven_norm_bound()


def test_training_vectors_are_converged_after_construction_reset_and_load():
    @torch.no_grad()
    def ratio(layer):
        half = layer._half(layer._filter_parameters())
        raw = assemble(half)
        scaled, _ = scaled_by_estimate(half, layer._vectors(), 1.0)
        return float(raw.norm() / scaled.norm()) / proven_norm(raw, 1)[0]

    layer = snn.SOC2d(16, 16, 3)
    assert ratio(layer) > 0.95
    layer.reset_parameters()
    assert ratio(layer) > 0.95
    _loaded_with_vectors_of_other_weights(layer)
    assert ratio(layer) > 0.95


# Gradients of the parameters, the normalisation included.


@pytest.mark.parametrize(
    ("name", "training"),
    [("SOC2d", False), ("SOC2d", True), ("SUC2d", True), pytest.param("SUC2d", False, marks=pytest.mark.slow)],
)
def test_the_gradients_of_the_parameters_are_exact(name, training):
    dtype = DOUBLE.to_complex() if name == "SUC2d" else DOUBLE
    layer = getattr(snn, name)(2, 2, 3, dtype=dtype).train(training)
    x = torch.randn(1, 2, 3, 3, dtype=dtype)
    for _ in range(60):
        layer._last_step = LastStep()  # as if the parameters had changed: else no further step is taken
        layer._filter(step=True)
    parameters = dict(layer.named_parameters())

    def function(*values):
        # A copy each time: with converged vectors one more step changes nothing, and the point stays the same.
        return torch.func.functional_call(layer, dict(zip(parameters, values, strict=True)), x)

    leaves = [p.detach().clone().requires_grad_() for p in parameters.values()]
    assert torch.autograd.gradcheck(function, leaves, eps=1e-6, atol=1e-5, nondet_tol=1e-7, fast_mode=True)


def test_from_filter_keeps_the_skew_filter_up_to_its_scale():
    rows = ((snn.SOC1d, (4, 2, 4), 2), (snn.SOC2d, (3, 3, 3, 2), 1), (snn.SUC3d, (2, 2, 3, 1, 2), 1))
    for cls, shape, groups in rows:
        dtype = torch.complex128 if cls is snn.SUC3d else DOUBLE
        M = torch.randn(*shape, dtype=dtype)
        layer, skew = cls.from_filter(M, groups=groups).eval(), skew_filter(M, groups)
        scale = layer.weight.norm() / skew.norm()
        torch.testing.assert_close(layer.weight.detach(), skew * scale.detach(), atol=1e-14, rtol=0)
