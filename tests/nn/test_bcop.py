"""BCOP: an orthogonal filter by the dense matrix, proved for every size, after training too, and never stale."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from skewconv.errors import ArgumentError, NotFiniteError, NotInvertibleError, ShapeError
from skewconv.nn.bcop import BCOP2d, bjorck, block_convolution, filter_defect
from skewconv.nn.bounds import lipschitz_upper_bound
from skewconv.ops.dense import dense_jacobian, dense_matrix

# in_channels, out_channels, kernel_size, stride, height, width
CASES = [
    (4, 4, 3, 1, 5, 6),
    (3, 8, 3, 1, 4, 4),
    (8, 3, 3, 1, 4, 4),
    (2, 8, 3, 2, 8, 6),
    (3, 6, 3, 2, 8, 8),
    (2, 9, 3, 2, 6, 6),
    (4, 4, 5, 1, 6, 5),
    (4, 4, 2, 1, 5, 5),
    (5, 4, 4, 1, 6, 6),
    (1, 9, 3, 3, 9, 6),
    (3, 3, 1, 1, 3, 3),
    (1, 1, 3, 1, 4, 4),
    (4, 4, 3, 1, 1, 1),
    (4, 4, 3, 1, 2, 1),
]
cases = pytest.mark.parametrize(("c_in", "c_out", "k", "s", "h", "w"), CASES)


def dense(layer: nn.Module, shape: tuple[int, ...]) -> np.ndarray:
    """The matrix of the layer without its bias, in float64 from what the layer computes in its own precision."""
    parameter = next(layer.parameters())
    bias = layer.bias.detach().view(-1, 1, 1) if layer.bias is not None else 0
    with torch.no_grad():
        matrix = dense_matrix(lambda x: (layer(x.to(parameter.dtype)) - bias).double(), shape)
    return matrix.numpy()


def singular_values(matrix: np.ndarray) -> np.ndarray:
    return np.linalg.svd(matrix, compute_uv=False)


@cases
def test_the_dense_matrix_is_orthogonal(c_in: int, c_out: int, k: int, s: int, h: int, w: int) -> None:
    layer = BCOP2d(c_in, c_out, k, s).eval()
    matrix = dense(layer, (c_in, h, w))
    assert matrix.shape == (c_out * (h // s) * (w // s), c_in * h * w)
    np.testing.assert_allclose(singular_values(matrix), 1.0, atol=2e-6)
    double = dense(BCOP2d(c_in, c_out, k, s, dtype=torch.float64).eval(), (c_in, h, w))
    np.testing.assert_allclose(singular_values(double), 1.0, atol=1e-11)


@cases
def test_the_proved_gains_contain_the_singular_values_of_the_filter(
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


@cases
def test_the_layer_is_the_circular_convolution_with_its_weight(
    c_in: int, c_out: int, k: int, s: int, h: int, w: int
) -> None:
    layer = BCOP2d(c_in, c_out, k, s, dtype=torch.float64).eval()
    nn.init.normal_(layer.bias)
    x = torch.randn(2, c_in, h, w, dtype=torch.float64)
    folded = nn.functional.pixel_unshuffle(x, s)
    jacobian = dense_jacobian(layer.weight.detach(), (h // s, w // s), "circular")
    expected = (folded.flatten(1) @ jacobian.T).view(2, c_out, h // s, w // s) + layer.bias.view(-1, 1, 1)
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(layer(x[0]), expected[0])


@cases
def test_the_adjoint_is_the_transposed_matrix_and_inverts_what_loses_nothing(
    c_in: int, c_out: int, k: int, s: int, h: int, w: int
) -> None:
    layer = BCOP2d(c_in, c_out, k, s, dtype=torch.float64).eval()
    nn.init.normal_(layer.bias)
    with torch.no_grad():
        adjoint = dense_matrix(layer.adjoint, (c_out, h // s, w // s)).numpy()
    np.testing.assert_allclose(adjoint, dense(layer, (c_in, h, w)).T, atol=1e-13)
    x = torch.randn(2, c_in, h, w, dtype=torch.float64)
    if c_in * s * s <= c_out:
        torch.testing.assert_close(layer.inverse(layer(x)), x)
        torch.testing.assert_close(layer.inverse(layer(x[0])), x[0])
    else:
        with pytest.raises(NotInvertibleError, match=rf"maps {c_in * s * s} channels .* to {c_out}"):
            layer.inverse(layer(x))


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


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.floats(0, 0.3), st.integers(0, 99))
@settings(max_examples=30)
def test_the_defect_bounds_the_residual_at_every_size(rows: int, columns: int, k: int, noise: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = noise * torch.randn(rows, columns, k, k, dtype=torch.float64, generator=generator)
    weight[:, :, k // 2, k // 2] += torch.eye(rows, columns)
    defect = filter_defect(weight, 0.95)
    for size in (1, 2, 5):
        sigma = singular_values(dense_jacobian(weight, size, "circular").numpy())
        assert float(np.abs(sigma**2 - 0.95).max()) <= defect + 1e-14
    assert filter_defect(torch.eye(3).view(3, 3, 1, 1), 1.0) < 1e-13


def test_gradients_are_those_of_finite_differences_in_both_modes() -> None:
    for c_in, c_out in ((2, 3), (3, 2)):
        layer = BCOP2d(c_in, c_out, 2, dtype=torch.float64)
        x = torch.randn(1, c_in, 3, 3, dtype=torch.float64, requires_grad=True)
        for training in (True, False):
            layer.train(training)

            def run(x, h, v, b, layer=layer):
                names = ("raw_orthogonal", "raw_projectors", "bias")
                return torch.func.functional_call(layer, dict(zip(names, (h, v, b), strict=True)), (x,))

            assert torch.autograd.gradcheck(run, (x, layer.raw_orthogonal, layer.raw_projectors, layer.bias))


@pytest.mark.parametrize(("c_in", "c_out", "s"), [(4, 4, 1), (2, 6, 1), (2, 5, 2)])
def test_twenty_steps_of_sgd_leave_the_layer_orthogonal(c_in: int, c_out: int, s: int) -> None:
    layer = BCOP2d(c_in, c_out, 3, s)
    x, target = torch.randn(8, c_in, 4, 4), torch.randn(8, c_out, 4 // s, 4 // s)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.5, momentum=0.9)
    before = layer.weight.detach()
    losses = []
    for _ in range(20):
        loss = (layer(x) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert float((layer.weight.detach() - before).abs().max()) > 0.01
    np.testing.assert_allclose(singular_values(dense(layer, (c_in, 4, 4))), 1.0, atol=1e-5)
    training = layer.weight.detach()
    np.testing.assert_allclose(singular_values(dense(layer.eval(), (c_in, 4, 4))), 1.0, atol=2e-6)
    torch.testing.assert_close(layer.weight.detach(), training, atol=1e-5, rtol=0)


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


def test_the_kept_filter_is_never_stale() -> None:
    layer, x = BCOP2d(3, 4, 3).eval(), torch.randn(1, 3, 4, 4)
    edits = [
        lambda: layer.raw_orthogonal.data.neg_(),
        lambda: layer.raw_projectors.data[1].normal_(),
        lambda: layer.raw_projectors.data.copy_(layer.raw_projectors.data.flip(0)),
        layer.reset_parameters,
        lambda: layer.load_state_dict(BCOP2d(3, 4, 3).state_dict()),
    ]
    with torch.no_grad():
        previous = layer(x)
        for edit in edits:
            edit()
            now = layer(x)
            assert not torch.allclose(now, previous)
            assert torch.equal(now, copy.deepcopy(layer)(x))
            torch.testing.assert_close(now, layer.train()(x), atol=1e-5, rtol=1e-5)
            layer.eval()
            previous = now


def test_eval_mode_builds_once_and_gives_the_same_values_with_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x, calls = BCOP2d(3, 4, 3), torch.randn(1, 3, 4, 4), []
    prove = layer._prove
    monkeypatch.setattr(layer, "_prove", lambda: calls.append(1) or prove())
    bounds = layer.gain_bounds()
    layer.eval()
    with torch.inference_mode():
        y = layer(x)
    with torch.no_grad():
        layer.weight.zero_()
        assert torch.equal(layer(x), y)
    assert torch.equal(layer(x.requires_grad_()).detach(), y)
    assert layer.gain_bounds() == bounds
    assert len(calls) == 1
    layer.requires_grad_(False)(x).sum().backward()
    assert x.grad is not None


def test_copies_pickles_and_state_dicts_compute_the_same() -> None:
    layer, x = BCOP2d(3, 4, 3).eval(), torch.randn(2, 3, 4, 4)
    nn.init.normal_(layer.bias)
    fresh = BCOP2d(3, 4, 3).eval()
    fresh.load_state_dict(layer.state_dict())
    with torch.no_grad():
        for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), fresh):
            assert torch.equal(copied(x), layer(x))
        assert layer(x[:0]).shape == (0, 4, 4, 4)
    assert repr(layer) == "BCOP2d(3, 4, kernel_size=3, stride=1, bias=True)"


def test_half_precision_states_its_larger_error() -> None:
    layer = BCOP2d(4, 4, 3, dtype=torch.bfloat16).eval()
    low, high = layer.gain_bounds()
    sigma = singular_values(dense_jacobian(layer.weight.detach().double(), 5, "circular").numpy())
    assert 0.9 < low <= sigma.min() <= sigma.max() <= high <= 1.0
    assert layer(torch.randn(1, 4, 4, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_arguments_that_do_not_fit_are_refused() -> None:
    for arguments, name in (
        ((0, 4, 3), "in_channels"),
        ((4, 4.0, 3), "out_channels"),
        ((4, 4, (3, 3)), "kernel_size"),
        ((4, 4, 3, 0), "stride"),
    ):
        with pytest.raises(ArgumentError, match=name):
            BCOP2d(*arguments)
    with pytest.raises(ArgumentError, match="bjorck_iterations"):
        BCOP2d(4, 4, 3, bjorck_iterations=0)
    with pytest.raises(ShapeError, match=r"\(n, 4, h, w\).*got \(1, 3, 4, 4\)"):
        BCOP2d(4, 4, 3)(torch.zeros(1, 3, 4, 4))
    with pytest.raises(ShapeError, match="not divisible"):
        BCOP2d(4, 4, 3, 2)(torch.zeros(1, 4, 5, 4))
    layer = BCOP2d(4, 4, 3)
    with torch.no_grad():
        layer.raw_orthogonal[0, 0] = math.nan
    with pytest.raises(NotFiniteError):
        lipschitz_upper_bound(layer, (4, 4, 4))
