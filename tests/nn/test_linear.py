"""Linear layers: orthonormal to rounding, proved so, and never stale; the cache that keeps them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import expm
from torch import nn

from skewconv.errors import ArgumentError
from skewconv.nn import lipschitz_upper_bound
from skewconv.nn.linear import NormalizedLinear, OrthogonalLinear, exponential_columns
from skewconv.nn.soc.skew_parametrization import FreeHalf, assemble, taps_of

SHAPES = [(1, 1), (4, 4), (8, 3), (3, 8), (40, 5), (5, 40), (33, 2)]
shapes = pytest.mark.parametrize(("inputs", "outputs"), SHAPES)


def singular_values(matrix: torch.Tensor) -> np.ndarray:
    return np.linalg.svd(matrix.detach().double().numpy(), compute_uv=False)


def skew_matrix(norm: float, seed: int) -> torch.Tensor:
    a = torch.randn(20, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    a = a - a.T
    return a * (norm / float(torch.linalg.matrix_norm(a, 2)))


def oracle(layer: OrthogonalLinear) -> np.ndarray:
    """The slice of exp(A), by scipy; how the triangle is packed is tested with the filters'."""
    packed = layer.lower_triangle.detach().double() / 2
    a = assemble(FreeHalf(None, packed[None], None, taps_of((1,)), layer.size))[..., 0].numpy()
    return expm(a)[: layer.out_features, : layer.in_features]


@shapes
@pytest.mark.parametrize("training", [True, False])
def test_the_matrix_is_a_slice_of_the_exponential_of_a_skew_matrix(inputs: int, outputs: int, training: bool) -> None:
    layer = OrthogonalLinear(inputs, outputs, dtype=torch.float64).train(training)
    np.testing.assert_allclose(layer.weight.detach().numpy(), oracle(layer), atol=1e-13)
    single = OrthogonalLinear(inputs, outputs).train(training)
    np.testing.assert_allclose(single.weight.detach().numpy(), oracle(single), atol=2e-6)
    x = torch.randn(7, 2, inputs)
    torch.testing.assert_close(single(x), x @ single.weight.T + single.bias)
    torch.testing.assert_close(single(x[0, 0]), single(x)[0, 0])


@shapes
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_proven_gains_contain_the_singular_values_and_never_exceed_one(inputs, outputs, dtype):
    layer = OrthogonalLinear(inputs, outputs, dtype=dtype).eval()
    (low, high), sigma = layer.gain_bounds(), singular_values(layer.weight)
    assert low - 1e-14 <= sigma.min()
    assert sigma.max() <= high + 1e-14
    assert high <= 1.0
    assert high == lipschitz_upper_bound(layer, (inputs,))
    assert low >= 1 - 8 * torch.finfo(dtype).eps - 1e-13


def test_the_parameter_of_the_network_of_the_package_is_taken() -> None:
    layer, other = OrthogonalLinear(300, 10), OrthogonalLinear(300, 10)
    other.load_state_dict({"raw_generator": layer.lower_triangle.detach() * 2**3, "bias": layer.bias})
    assert torch.equal(other.lower_triangle, layer.lower_triangle)


@given(st.integers(1, 3), st.floats(0, 700), st.integers(0, 99))
@settings(max_examples=25)
def test_few_columns_of_the_exponential_equal_those_of_the_full_one(count: int, norm: float, seed: int) -> None:
    a = skew_matrix(norm, seed)
    np.testing.assert_allclose(exponential_columns(a, count).numpy(), expm(a.numpy())[:, :count], atol=1e-12)


@pytest.mark.parametrize("inverse", [False, True])
def test_one_plane_among_many_slower_ones_is_not_missed(inverse: bool) -> None:
    # The spectrum on which power steps fall shortest: most planes turn three quarters as far as the last one.
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((600, 600)))[0]
    angles = np.full(300, 30.0)
    angles[0] = 40.0
    blocks = np.kron(np.diag(angles), [[0.0, -1.0], [1.0, 0.0]])
    a = rotation @ blocks @ rotation.T
    a = (a - a.T) / 2
    found = exponential_columns(torch.from_numpy(a), 3, inverse=inverse).numpy()
    np.testing.assert_allclose(found, expm(-a if inverse else a)[:, :3], atol=1e-12)


@given(st.integers(1, 20), st.floats(0, 1024), st.booleans(), st.integers(0, 99))
@settings(max_examples=25)
def test_columns_without_a_look_at_the_norm_are_those_of_the_exponential(count, norm, inverse, seed) -> None:
    a = skew_matrix(norm, seed)
    found = exponential_columns(a, count, inverse=inverse, may_wait=False).numpy()
    # Of the ninth term, once for each of the halves.
    allowed = 2**11 * (norm / 2**11) ** 9 / math.factorial(9)
    np.testing.assert_allclose(found, expm((-a if inverse else a).numpy())[:, :count], atol=1.01 * allowed + 1e-11)
    rough = exponential_columns(a.float(), count, inverse=inverse, may_wait=False).numpy()
    np.testing.assert_allclose(rough, found, atol=3e-7 * (norm + 10))


def test_gradients_without_a_look_at_the_norm_are_those_of_finite_differences() -> None:
    skew = torch.randn(6, 6, dtype=torch.float64)
    skew = (skew - skew.T).requires_grad_()
    assert torch.autograd.gradcheck(lambda skew: exponential_columns(skew, 2, may_wait=False), skew)


def test_rows_of_a_normalized_layer_have_length_one_and_its_bound_is_its_norm() -> None:
    layer = NormalizedLinear(7, 4)
    with torch.no_grad():
        layer.raw_weight.mul_(torch.tensor([[1.0], [1e-6], [1e6], [3.0]]))
    np.testing.assert_allclose(layer.weight.detach().double().norm(dim=1).numpy(), 1.0, atol=1e-6)
    sigma = singular_values(layer.weight).max()
    assert sigma <= lipschitz_upper_bound(layer, (7,)) <= sigma * (1 + 1e-9)
    x = torch.randn(3, 7)
    torch.testing.assert_close(layer(x), x @ layer.weight.T + layer.bias)
    (layer(x) * torch.randn(3, 4)).sum().backward()
    # The length of a row does not matter, so the gradient is perpendicular to it.
    along = (layer.raw_weight.grad * layer.weight).sum(1) * layer.raw_weight.norm(dim=1)
    assert float(along.detach().abs().max()) < 1e-4


def test_a_row_of_zeros_stays_zero_and_is_bounded() -> None:
    layer = NormalizedLinear(3, 2)
    nn.init.zeros_(layer.raw_weight)
    assert bool((layer.weight == 0).all())
    assert lipschitz_upper_bound(layer, (3,)) == 0.0


@pytest.mark.parametrize("kind", [OrthogonalLinear, NormalizedLinear])
def test_sizes_that_are_not_positive_integers_are_refused(kind) -> None:
    assert repr(kind(6, 4)) == f"{kind.__name__}(in_features=6, out_features=4, bias=True)"
    assert kind(6, 4, bias=False).bias is None
    for sizes, name in (((0, 3), "in_features"), ((3, -1), "out_features"), ((3, 2.0), "out_features")):
        with pytest.raises(ArgumentError, match=name):
            kind(*sizes)
