"""BCOP: an orthogonal filter by the dense matrix, proved for every size, after training too, and never stale."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from skewconv.nn import lipschitz_upper_bound
from skewconv.nn.bcop import BCOP2d, basis_for_projector, bjorck, block_convolution, times_factor
from skewconv.ops.dense_matrices import dense_jacobian
from tests.nn.matrices import dense, singular_values
from tests.nn.test_orthogonal_conv import cases


@cases
def test_the_proven_gains_contain_the_singular_values_of_the_filter(
    c_in: int, c_out: int, k: int, s: int, h: int, w: int
) -> None:
    layer = BCOP2d(c_in, c_out, k, s).eval()
    assert layer.weight.shape == (c_out, c_in * s * s, k, k)
    jacobian = dense_jacobian(layer.weight.detach().double(), (h // s, w // s), "circular").numpy()
    (low, high), sigma = layer.gain_bounds(), singular_values(jacobian)
    assert low - 1e-13 <= sigma.min()
    assert sigma.max() <= high + 1e-13
    assert low > 1 - 3e-6
    assert high <= 1.0
    assert high == lipschitz_upper_bound(layer, (c_in, h, w))
    folded = (
        jacobian @ nn.functional.pixel_unshuffle(torch.eye(c_in * h * w).view(-1, c_in, h, w), s).flatten(1).T.numpy()
    )
    np.testing.assert_allclose(dense(layer, (c_in, h, w)), folded, atol=1e-5)


def test_the_filter_is_the_product_of_the_published_construction() -> None:
    h = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64)).Q
    bases = torch.linalg.qr(torch.randn(4, 4, 2, dtype=torch.float64)).Q
    taps = block_convolution(h, [(basis, index % 2) for index, basis in enumerate(bases)])
    z, w = torch.polar(torch.ones(2, dtype=torch.float64), torch.tensor([0.7, -1.9], dtype=torch.float64))
    symbol = sum(taps[i, j] * z**i * w**j for i in range(3) for j in range(3))
    expected, identity = h.to(torch.complex128), torch.eye(4)
    for basis, variable in zip(bases, (z, w, z, w), strict=True):
        p = basis @ basis.T
        expected = expected @ (p + variable * (identity - p))
    torch.testing.assert_close(symbol, expected)
    for c_in, c_out in ((4, 4), (3, 4), (4, 3)):
        layer = BCOP2d(c_in, c_out, 3, dtype=torch.float64)
        with torch.no_grad():
            layer.raw_orthogonal.copy_(h[:c_out])
            layer.raw_projectors.copy_(bases)
            symbol = sum(layer.weight[:, :, i, j] * z**i * w**j for i in range(3) for j in range(3))
        torch.testing.assert_close(symbol, expected[:c_out, :c_in], atol=1e-9, rtol=0)


@given(st.integers(1, 7), st.integers(1, 7), st.floats(1e-3, 1e3), st.integers(0, 99))
@settings(max_examples=30)
def test_bjorck_finds_the_nearest_orthonormal_matrix(rows: int, columns: int, scale: float, seed: int) -> None:
    a = scale * torch.randn(2, rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    u, sigma, vh = np.linalg.svd(a.numpy(), full_matrices=False)
    if sigma.min() / sigma.max() > 1e-3:
        np.testing.assert_allclose(bjorck(a, 80).numpy(), u @ vh, atol=1e-9)


def test_a_parameter_far_from_orthogonal_converges_in_eval_mode_and_says_so() -> None:
    layer = BCOP2d(4, 4, 3).eval()
    with torch.no_grad():
        layer.raw_orthogonal.copy_(torch.diag(torch.tensor([1.0, 1e-2, 1e-4, 1e-6])) @ layer.raw_orthogonal)
    assert layer.gain_bounds()[0] > 1 - 1e-5
    np.testing.assert_allclose(singular_values(dense(layer, (4, 4, 4))), 1.0, atol=1e-5)
    with torch.no_grad():
        layer.raw_orthogonal[0] = 0
    low, high = layer.gain_bounds()
    sigma = singular_values(dense(layer, (4, 4, 4)))
    assert low <= sigma.min() < 1e-6
    assert sigma.max() <= high


def test_half_precision_states_its_larger_error() -> None:
    layer = BCOP2d(4, 4, 3, dtype=torch.bfloat16).eval()
    low, high = layer.gain_bounds()
    sigma = singular_values(dense_jacobian(layer.weight.detach().double(), 5, "circular").numpy())
    assert 0.9 < low <= sigma.min() <= sigma.max() <= high <= 1.0
    assert layer(torch.randn(1, 4, 4, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize(("channels", "kernel"), [(4, 1), (1, 3)])
def test_no_parameter_is_empty_and_earlier_states_that_hold_one_are_read(channels: int, kernel: int) -> None:
    layer = BCOP2d(channels, channels, kernel)
    layer(torch.randn(2, channels, 4, 4)).sum().backward()
    assert all(p.numel() and p.grad is not None for p in layer.parameters())
    empty = torch.empty(2 * (kernel - 1), channels, channels // 2)
    layer.load_state_dict({**layer.state_dict(), "raw_projectors": empty}, strict=True)
    assert layer.weight.shape == (channels, channels, kernel, kernel)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("least", [1.0, 0.1, 1e-4, 0.0])
def test_the_projector_is_that_of_the_nearest_orthonormal_matrix(least: float, dtype: torch.dtype) -> None:
    u, v = (nn.init.orthogonal_(torch.empty(2, n, 4, dtype=torch.float64)[0]) for n in (9, 4))
    values = torch.logspace(0, -1, 4, dtype=torch.float64).clamp_min(least)
    values[-1] = least
    raw = torch.stack([(u * values) @ v.T, (u * values.clamp_min(0.3)) @ v.T]).to(dtype)
    basis, nearest = basis_for_projector(raw, 80), bjorck(raw, 80)
    tolerance = 200 * torch.finfo(dtype).eps
    if least:
        torch.testing.assert_close(basis @ basis.mT, nearest @ nearest.mT, atol=tolerance / least, rtol=0)
        torch.testing.assert_close(basis.mT @ basis, torch.eye(4, dtype=dtype).expand(2, 4, 4), atol=tolerance, rtol=0)
    else:
        assert torch.equal(basis, nearest)  # a matrix without full rank is left to the iteration


def test_gradients_of_the_projector_are_exact_to_the_second_order() -> None:
    raw = torch.randn(2, 5, 2, dtype=torch.float64, requires_grad=True)

    def projector(w: torch.Tensor) -> torch.Tensor:
        basis = basis_for_projector(w, 80)
        return basis @ basis.mT

    assert torch.autograd.gradcheck(projector, raw)
    assert torch.autograd.gradgradcheck(projector, raw)


@pytest.mark.parametrize("axis", [0, 1])
def test_gradients_of_a_product_with_two_taps_are_exact_to_the_second_order(axis: int) -> None:
    taps = torch.randn(2, 3, 2, 4, dtype=torch.float64, requires_grad=True)
    basis = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)

    def product(taps: torch.Tensor, basis: torch.Tensor) -> torch.Tensor:
        return times_factor(taps, basis, axis)

    assert torch.autograd.gradcheck(product, (taps, basis))
    assert torch.autograd.gradgradcheck(product, (taps, basis))


def test_the_gradients_of_training_are_those_that_a_transform_of_functions_writes_out() -> None:
    layer = BCOP2d(3, 4, 3, stride=2, dtype=torch.float64)
    parameters, x = dict(layer.named_parameters()), torch.randn(5, 3, 8, 8, dtype=torch.float64)

    def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(layer, parameters, x).sin().sum()

    # There the taps are multiplied without a word about gradients, and Björck's iteration finds the bases.
    written_out = torch.func.grad(loss)(parameters)
    ours = torch.autograd.grad(loss(parameters), list(parameters.values()))
    torch.testing.assert_close(dict(zip(parameters, ours, strict=True)), written_out, atol=1e-6, rtol=0)
