"""Cayley: orthogonal at every frequency, by the dense matrix, proved for each size, and never stale."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from skewconv.errors import ArgumentError, DtypeError, NotFiniteError, NotInvertibleError, ShapeError
from skewconv.nn.bounds import lipschitz_upper_bound
from skewconv.nn.cayley import Cayley2d, cayley
from skewconv.ops.dense import dense_jacobian, dense_matrix

# in_channels, out_channels, kernel_size, stride, height, width
CASES = [
    (4, 4, 3, 1, 5, 6),
    (3, 8, 3, 1, 4, 4),
    (8, 3, 3, 1, 4, 5),
    (2, 8, 3, 2, 8, 6),
    (3, 6, 3, 2, 8, 8),
    (2, 9, 3, 2, 6, 6),
    (4, 4, 5, 1, 3, 2),
    (4, 4, 2, 1, 5, 5),
    (1, 9, 3, 3, 9, 6),
    (3, 3, 1, 1, 3, 3),
    (1, 1, 3, 1, 4, 4),
    (4, 4, 3, 1, 1, 1),
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


def stored_operator(layer: Cayley2d, shape: tuple[int, int, int]) -> np.ndarray:
    """The matrix of the frequency matrices exactly as stored, with the Fourier transform in float64."""
    with torch.no_grad():
        q = layer.frequency_matrices(shape).to(torch.complex128)
    c, h, w = shape[0] * layer.stride**2, shape[1] // layer.stride, shape[2] // layer.stride

    def run(x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft2(x)
        return torch.fft.irfft2(torch.einsum("uvoi,niuv->nouv", q, spectrum), s=(h, w))

    return dense_matrix(run, (c, h, w)).numpy()


@cases
def test_the_dense_matrix_is_orthogonal(c_in: int, c_out: int, k: int, s: int, h: int, w: int) -> None:
    layer = Cayley2d(c_in, c_out, k, s).eval()
    matrix = dense(layer, (c_in, h, w))
    assert matrix.shape == (c_out * (h // s) * (w // s), c_in * h * w)
    np.testing.assert_allclose(singular_values(matrix), 1.0, atol=2e-6)
    double = dense(Cayley2d(c_in, c_out, k, s, dtype=torch.float64).eval(), (c_in, h, w))
    np.testing.assert_allclose(singular_values(double), 1.0, atol=1e-11)


@cases
def test_the_proved_gains_contain_the_singular_values(c_in: int, c_out: int, k: int, s: int, h: int, w: int) -> None:
    layer, shape = Cayley2d(c_in, c_out, k, s).eval(), (c_in, h, w)
    (low, high), sigma = layer.gain_bounds(shape), singular_values(stored_operator(layer, shape))
    assert low - 1e-13 <= sigma.min()
    assert sigma.max() <= high + 1e-13
    assert low > 1 - 1e-6
    assert high <= 1.0
    assert high == lipschitz_upper_bound(layer, shape)


def test_square_layers_are_the_cayley_transform_of_a_skew_convolution() -> None:
    for k, size in ((3, (4, 5)), (2, (4, 4)), (5, (3, 3))):
        layer = Cayley2d(3, 3, k, dtype=torch.float64).eval()
        with torch.no_grad():
            layer.alpha.mul_(1.7)
            weight = layer.alpha * layer.raw_weight / layer.raw_weight.norm()
        jacobian = dense_jacobian(weight, size, "circular").numpy()
        a = jacobian - jacobian.T
        identity = np.eye(len(a))
        expected = (identity - a) @ np.linalg.inv(identity + a)
        np.testing.assert_allclose(dense(layer, (3, *size)), expected, atol=1e-12)


@given(st.integers(1, 6), st.integers(1, 6), st.floats(0, 50), st.booleans(), st.integers(0, 99))
@settings(max_examples=40)
def test_the_transform_of_any_matrix_is_orthonormal(
    rows: int, columns: int, scale: float, is_complex: bool, seed: int
) -> None:
    dtype = torch.complex128 if is_complex else torch.float64
    q = cayley(scale * torch.randn(2, rows, columns, dtype=dtype, generator=torch.Generator().manual_seed(seed)))
    assert q.shape == (2, rows, columns)
    np.testing.assert_allclose(singular_values(q.resolve_conj().numpy()), 1.0, atol=1e-10)


@cases
def test_the_adjoint_is_the_transposed_matrix_and_inverts_what_loses_nothing(
    c_in: int, c_out: int, k: int, s: int, h: int, w: int
) -> None:
    layer = Cayley2d(c_in, c_out, k, s, dtype=torch.float64).eval()
    nn.init.normal_(layer.bias)
    with torch.no_grad():
        adjoint = dense_matrix(layer.adjoint, (c_out, h // s, w // s)).numpy()
    np.testing.assert_allclose(adjoint, dense(layer, (c_in, h, w)).T, atol=1e-13)
    x = torch.randn(2, c_in, h, w, dtype=torch.float64)
    torch.testing.assert_close(layer(x[0]), layer(x)[0])
    if c_in * s * s <= c_out:
        torch.testing.assert_close(layer.inverse(layer(x)), x)
    else:
        with pytest.raises(NotInvertibleError):
            layer.inverse(layer(x))


def test_the_bias_is_added_to_each_channel() -> None:
    layer, x = Cayley2d(3, 4, 3).eval(), torch.randn(2, 3, 4, 4)
    y = layer(x)
    nn.init.normal_(layer.bias)
    torch.testing.assert_close(layer(x) - y, layer.bias.view(1, 4, 1, 1).expand_as(y))
    assert Cayley2d(3, 4, 3, bias=False)(x).shape == (2, 4, 4, 4)


def test_gradients_are_those_of_finite_differences_in_both_modes() -> None:
    for c_in, c_out in ((2, 3), (3, 2)):
        layer = Cayley2d(c_in, c_out, 2, dtype=torch.float64)
        x = torch.randn(1, c_in, 3, 4, dtype=torch.float64, requires_grad=True)
        for training in (True, False):
            layer.train(training)

            def run(x, weight, alpha, layer=layer):
                return torch.func.functional_call(layer, {"raw_weight": weight, "alpha": alpha}, (x,))

            assert torch.autograd.gradcheck(run, (x, layer.raw_weight, layer.alpha))


@pytest.mark.parametrize(("c_in", "c_out", "s"), [(4, 4, 1), (2, 6, 1), (2, 5, 2)])
def test_twenty_steps_of_sgd_leave_the_layer_orthogonal(c_in: int, c_out: int, s: int) -> None:
    layer = Cayley2d(c_in, c_out, 3, s)
    x, target = torch.randn(8, c_in, 4, 4), torch.randn(8, c_out, 4 // s, 4 // s)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.5, momentum=0.9)
    before, losses = dense(layer, (c_in, 4, 4)), []
    for _ in range(20):
        loss = (layer(x) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    after = dense(layer, (c_in, 4, 4))
    assert np.abs(after - before).max() > 0.01
    np.testing.assert_allclose(singular_values(after), 1.0, atol=1e-5)
    evaluated = dense(layer.eval(), (c_in, 4, 4))
    np.testing.assert_allclose(singular_values(evaluated), 1.0, atol=2e-6)
    np.testing.assert_allclose(evaluated, after, atol=1e-5)


def test_the_kept_matrices_are_never_stale_at_any_size() -> None:
    layer, images = Cayley2d(3, 4, 3).eval(), [torch.randn(1, 3, n, n) for n in (3, 4, 6)]
    edits = [
        lambda: layer.alpha.data.mul_(3),
        lambda: layer.raw_weight.data.copy_(layer.raw_weight.data.flip(-1)),
        layer.reset_parameters,
        lambda: layer.load_state_dict(Cayley2d(3, 4, 3).state_dict()),
    ]
    with torch.no_grad():
        previous = [layer(x) for x in images]
        for edit in edits:
            edit()
            now = [layer(x) for x in images]
            assert not any(torch.allclose(a, b) for a, b in zip(now, previous, strict=True))
            assert all(torch.equal(y, copy.deepcopy(layer)(x)) for x, y in zip(images, now, strict=True))
            previous = now


def test_eval_mode_builds_once_a_size_and_gives_the_same_values_with_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer, calls = Cayley2d(3, 4, 3).eval(), []
    prove = layer._prove
    monkeypatch.setattr(layer, "_prove", lambda size: calls.append(size) or prove(size))
    x = torch.randn(1, 3, 4, 6)
    with torch.inference_mode():
        y = layer(x)
    with torch.no_grad():
        layer.frequency_matrices((3, 4, 6)).zero_()
        assert torch.equal(layer(x), y)
        layer(x.mT)
        layer(x)
    assert torch.equal(layer(x.requires_grad_()).detach(), y)
    assert calls == [(4, 6), (6, 4)]
    layer.requires_grad_(False)(x).sum().backward()
    assert x.grad is not None


def test_copies_pickles_and_state_dicts_compute_the_same() -> None:
    layer, x = Cayley2d(3, 4, 3).eval(), torch.randn(2, 3, 4, 4)
    nn.init.normal_(layer.bias)
    fresh = Cayley2d(3, 4, 3).eval()
    fresh.load_state_dict(layer.state_dict())
    with torch.no_grad():
        for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), fresh):
            assert torch.equal(copied(x), layer(x))
        assert layer(x[:0]).shape == (0, 4, 4, 4)
    assert repr(layer) == "Cayley2d(3, 4, kernel_size=3, stride=1, bias=True)"


def test_low_precision_and_autocast_compute_in_float32_inside() -> None:
    layer = Cayley2d(4, 4, 3, dtype=torch.bfloat16).eval()
    x = torch.randn(1, 4, 4, 4)
    y = layer(x.bfloat16())
    assert y.dtype == torch.bfloat16
    assert float((y.float().norm() / x.norm()).detach()) == pytest.approx(1.0, abs=0.02)
    layer = Cayley2d(4, 4, 3).eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(layer(x), layer(x.bfloat16()), atol=0.05, rtol=0.05)
        assert layer(x).dtype == torch.float32


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ArgumentError, match="kernel_size"):
        Cayley2d(4, 4, 0)
    with pytest.raises(ShapeError, match=r"got \(1, 3, 4, 4\)"):
        Cayley2d(4, 4, 3)(torch.zeros(1, 3, 4, 4))
    with pytest.raises(ShapeError, match="stride=2"):
        Cayley2d(4, 4, 3, 2).gain_bounds((4, 5, 4))
    with pytest.raises(DtypeError, match="float64"):
        Cayley2d(4, 4, 3)(torch.zeros(1, 4, 4, 4, dtype=torch.float64))
    layer = Cayley2d(4, 4, 3)
    with torch.no_grad():
        layer.raw_weight[0, 0] = math.nan
    with pytest.raises(NotFiniteError):
        lipschitz_upper_bound(layer, (4, 4, 4))
