"""BCOP and Cayley: orthogonal by the dense matrix, proven for every size, inverted by the adjoint, never stale."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from skewconv.errors import DtypeError, NotInvertibleError, ShapeError
from skewconv.nn import BCOP2d, Cayley2d, lipschitz_upper_bound
from skewconv.nn.bcop import basis_for_projector, bjorck, block_convolution, times_factor
from skewconv.nn.cayley import cayley
from skewconv.ops.engines.dense_engine import dense_jacobian, dense_matrix


def dense(layer: nn.Module, shape: tuple[int, ...]) -> np.ndarray:
    """The matrix of the layer without its bias, in float64 from what the layer computes in its own precision."""
    parameter = next(layer.parameters())
    bias = layer.bias.detach().view(-1, 1, 1) if layer.bias is not None else 0
    with torch.no_grad():
        matrix = dense_matrix(lambda x: (layer(x.to(parameter.dtype)) - bias).double(), shape)
    return matrix.numpy()


def singular_values(matrix: np.ndarray) -> np.ndarray:
    return np.linalg.svd(matrix, compute_uv=False)


# in_channels, out_channels, kernel_size, stride, height, width
CASES = [
    (4, 4, 3, 1, 5, 6),
    (3, 8, 3, 1, 4, 4),
    (8, 3, 3, 1, 4, 5),
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
# in_channels, out_channels, kernel_size, stride, height, width, groups, dilation
GROUPED = [
    (4, 4, 3, 1, 5, 6, 2, 1),
    (4, 8, 2, 1, 7, 6, 4, (2, 3)),
    (6, 3, 3, 1, 5, 5, 3, 2),
    (2, 8, 3, 2, 6, 6, 2, 1),
    (4, 4, 3, 1, 4, 4, 4, 1),
    (4, 4, 3, 1, 2, 3, 1, 3),
]
cases = pytest.mark.parametrize(("c_in", "c_out", "k", "s", "h", "w"), CASES)
kinds = pytest.mark.parametrize("kind", [BCOP2d, Cayley2d])


@kinds
@cases
def test_the_matrix_is_orthogonal_and_its_transpose_inverts_what_loses_nothing(kind, c_in, c_out, k, s, h, w):
    layer = kind(c_in, c_out, k, s, dtype=torch.float64).eval()
    nn.init.normal_(layer.bias)
    with torch.no_grad():
        adjoint = dense_matrix(layer.adjoint, (c_out, h // s, w // s)).numpy()
    matrix = dense(layer, (c_in, h, w))
    assert matrix.shape == (c_out * (h // s) * (w // s), c_in * h * w)
    np.testing.assert_allclose(singular_values(matrix), 1.0, atol=1e-11)
    np.testing.assert_allclose(adjoint, matrix.T, atol=1e-13)
    x = torch.randn(2, c_in, h, w, dtype=torch.float64)
    torch.testing.assert_close(layer(x[0]), layer(x)[0])
    if c_in * s * s <= c_out:
        torch.testing.assert_close(layer.inverse(layer(x)), x)
        torch.testing.assert_close(layer.inverse(layer(x[0])), x[0])
    else:
        with pytest.raises(NotInvertibleError, match=rf"maps {c_in * s * s} channels .* to {c_out}"):
            layer.inverse(layer(x))


@kinds
@pytest.mark.parametrize(("c_in", "c_out", "k", "s", "h", "w", "groups", "dilation"), GROUPED)
def test_groups_and_dilation_keep_the_matrix_orthogonal(kind, c_in, c_out, k, s, h, w, groups, dilation):
    layer = kind(c_in, c_out, k, s, groups=groups, dilation=dilation, dtype=torch.float64).eval()
    nn.init.normal_(layer.bias)
    matrix, shape = dense(layer, (c_in, h, w)), (c_in, h, w)
    sigma, (low, high) = singular_values(matrix), layer.gain_bounds(shape)
    assert low - 1e-13 <= sigma.min() <= sigma.max() <= high + 1e-13 <= 1 + 2e-13
    np.testing.assert_allclose(sigma, 1.0, atol=1e-11)
    with torch.no_grad():
        adjoint = dense_matrix(layer.adjoint, (c_out, h // s, w // s)).numpy()
    np.testing.assert_allclose(adjoint, matrix.T, atol=1e-13)
    blocks = matrix.reshape(groups, c_out // groups, -1, groups, c_in // groups, h * w)
    assert not any(blocks[a, :, :, b].any() for a in range(groups) for b in range(groups) if a != b)
    # One group alone is the layer with its parameters.
    names = [name for name, _ in layer.named_parameters() if name != "bias"]
    alone = kind(c_in // groups, c_out // groups, k, s, dilation=dilation, bias=False, dtype=torch.float64).eval()
    last = {name: getattr(layer, name)[-1] if groups > 1 else getattr(layer, name) for name in names}
    alone.load_state_dict(last)
    np.testing.assert_allclose(
        dense(alone, (c_in // groups, h, w)), blocks[-1, :, :, -1].reshape(-1, c_in // groups * h * w), atol=1e-12
    )


@kinds
def test_eval_mode_builds_once(kind, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x, calls = kind(3, 4, 3), torch.randn(1, 3, 4, 6), []
    prove = layer._prove
    monkeypatch.setattr(layer, "_prove", lambda sources, size: calls.append(size) or prove(sources, size))
    bound = lipschitz_upper_bound(layer, (3, 4, 6))
    layer.eval()
    with torch.inference_mode():
        y = layer(x)
    with torch.no_grad():
        (layer.weight if kind is BCOP2d else layer.frequency_matrices((3, 4, 6))).zero_()
        assert torch.equal(layer(x), y)  # repeated
        layer(x.mT)
        layer(x)
    assert lipschitz_upper_bound(layer, (3, 4, 6)) == bound
    assert calls == ([()] if kind is BCOP2d else [(4, 6), (6, 4)])


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


@kinds
def test_half_precision_states_its_larger_error(kind) -> None:
    layer, x = kind(4, 4, 3, dtype=torch.bfloat16).eval(), torch.randn(1, 4, 5, 5)
    (low, high), sigma = layer.gain_bounds((4, 5, 5)), singular_values(stored_operator(layer, (4, 5, 5)))
    assert 0.9 < low <= sigma.min() <= sigma.max() <= high <= 1.0
    y = layer(x.bfloat16())
    assert y.dtype == torch.bfloat16
    assert float((y.float().norm() / x.norm()).detach()) == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize(("channels", "kernel"), [(4, 1), (1, 3)])
def test_no_parameter_is_empty(channels: int, kernel: int) -> None:
    layer = BCOP2d(channels, channels, kernel)
    layer(torch.randn(2, channels, 4, 4)).sum().backward()
    assert all(p.numel() and p.grad is not None for p in layer.parameters())
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
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda taps, basis: times_factor(taps, basis, axis), (taps, basis))


def test_the_gradients_of_training_are_those_that_a_transform_of_functions_writes_out() -> None:
    layer = BCOP2d(3, 4, 3, stride=2, dtype=torch.float64)
    parameters, x = dict(layer.named_parameters()), torch.randn(5, 3, 8, 8, dtype=torch.float64)

    def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(layer, parameters, x).sin().sum()

    # There the taps are multiplied without a word about gradients, and Björck's iteration finds the bases.
    written_out = torch.func.grad(loss)(parameters)
    ours = torch.autograd.grad(loss(parameters), list(parameters.values()))
    torch.testing.assert_close(dict(zip(parameters, ours, strict=True)), written_out, atol=1e-6, rtol=0)


def stored_operator(layer: BCOP2d | Cayley2d, shape: tuple[int, int, int]) -> np.ndarray:
    """The matrix of the filter, or of the frequency matrices, exactly as stored, in float64 on folded images."""
    c, h, w = shape[0] * layer.stride**2, shape[1] // layer.stride, shape[2] // layer.stride
    if isinstance(layer, BCOP2d):
        assert layer.weight.shape == (layer.out_channels, c, layer.kernel_size, layer.kernel_size)
        return dense_jacobian(layer.weight.detach().double(), (h, w), "circular").numpy()
    with torch.no_grad():
        q = layer.frequency_matrices(shape).to(torch.complex128)

    def run(x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft2(x)
        return torch.fft.irfft2(torch.einsum("uvoi,niuv->nouv", q, spectrum), s=(h, w))

    return dense_matrix(run, (c, h, w)).numpy()


@kinds
@cases
def test_the_proven_gains_contain_the_singular_values_of_what_is_stored_and_run(kind, c_in, c_out, k, s, h, w):
    layer, shape = kind(c_in, c_out, k, s).eval(), (c_in, h, w)
    stored = stored_operator(layer, shape)
    (low, high), sigma = layer.gain_bounds(shape), singular_values(stored)
    assert low - 1e-13 <= sigma.min()
    assert sigma.max() <= high + 1e-13
    assert low > 1 - 3e-6
    assert high <= lipschitz_upper_bound(layer, shape) <= 1.0
    assert high == lipschitz_upper_bound(layer, shape) or kind is Cayley2d
    fold = nn.functional.pixel_unshuffle(torch.eye(c_in * h * w).view(-1, *shape), s).flatten(1).T.numpy()
    np.testing.assert_allclose(dense(layer, shape), stored @ fold, atol=1e-5)


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
def test_the_transform_of_any_matrix_is_orthonormal(rows, columns, scale, is_complex, seed):
    dtype = torch.complex128 if is_complex else torch.float64
    q = cayley(scale * torch.randn(2, rows, columns, dtype=dtype, generator=torch.Generator().manual_seed(seed)))
    assert q.shape == (2, rows, columns)
    np.testing.assert_allclose(singular_values(q.resolve_conj().numpy()), 1.0, atol=1e-10)


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match="stride=2"):
        Cayley2d(4, 4, 3, 2).gain_bounds((4, 5, 4))
    with pytest.raises(DtypeError, match="float64"):
        Cayley2d(4, 4, 3)(torch.zeros(1, 4, 4, 4, dtype=torch.float64))
