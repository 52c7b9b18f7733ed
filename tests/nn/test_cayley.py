"""Cayley: orthogonal at every frequency, by the dense matrix, proved for each size, and never stale."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skewconv.errors import DtypeError, ShapeError
from skewconv.nn import lipschitz_upper_bound
from skewconv.nn.cayley import Cayley2d, cayley
from skewconv.ops.dense_matrices import dense_jacobian, dense_matrix
from tests.nn.matrices import dense, singular_values
from tests.nn.test_orthogonal_conv import cases


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
def test_the_proven_gains_contain_the_singular_values(c_in: int, c_out: int, k: int, s: int, h: int, w: int) -> None:
    layer, shape = Cayley2d(c_in, c_out, k, s).eval(), (c_in, h, w)
    (low, high), sigma = layer.gain_bounds(shape), singular_values(stored_operator(layer, shape))
    assert low - 1e-13 <= sigma.min()
    assert sigma.max() <= high + 1e-13
    assert low > 1 - 1e-6
    assert high <= 1.0
    assert high <= lipschitz_upper_bound(layer, shape) <= 1.0


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


def test_low_precision_computes_in_float32_inside() -> None:
    layer = Cayley2d(4, 4, 3, dtype=torch.bfloat16).eval()
    x = torch.randn(1, 4, 4, 4)
    y = layer(x.bfloat16())
    assert y.dtype == torch.bfloat16
    assert float((y.float().norm() / x.norm()).detach()) == pytest.approx(1.0, abs=0.02)


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match="stride=2"):
        Cayley2d(4, 4, 3, 2).gain_bounds((4, 5, 4))
    with pytest.raises(DtypeError, match="float64"):
        Cayley2d(4, 4, 3)(torch.zeros(1, 4, 4, 4, dtype=torch.float64))
