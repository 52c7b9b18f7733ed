"""BCOP and Cayley alike: orthogonal by the dense matrix, in training too, inverted by the adjoint, and never stale."""

import numpy as np
import pytest
import torch
from torch import nn

from skewconv.errors import NotInvertibleError
from skewconv.nn import BCOP2d, Cayley2d, lipschitz_upper_bound
from skewconv.ops.dense_matrices import dense_matrix
from tests.nn.matrices import dense, singular_values

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
cases = pytest.mark.parametrize(("c_in", "c_out", "k", "s", "h", "w"), CASES)
pytestmark = pytest.mark.parametrize("kind", [BCOP2d, Cayley2d])


@cases
def test_the_matrix_is_orthogonal_and_its_transpose_inverts_what_loses_nothing(
    kind, c_in: int, c_out: int, k: int, s: int, h: int, w: int
) -> None:
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


def test_gradients_are_those_of_finite_differences_in_both_modes(kind) -> None:
    for c_in, c_out in ((2, 3), (3, 2)):
        layer = kind(c_in, c_out, 2, dtype=torch.float64)
        x = torch.randn(1, c_in, 3, 3, dtype=torch.float64, requires_grad=True)
        names, values = zip(*layer.named_parameters(), strict=True)
        for training in (True, False):
            layer.train(training)

            def run(x, *values, layer=layer, names=names):
                return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))

            assert torch.autograd.gradcheck(run, (x, *values))


def test_eval_mode_builds_once_and_gives_the_same_values_with_gradients(kind, monkeypatch: pytest.MonkeyPatch) -> None:
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
    # With gradients torch may multiply matrices by other kernels.
    torch.testing.assert_close(layer(x.requires_grad_()).detach(), y, atol=1e-6, rtol=0)
    assert lipschitz_upper_bound(layer, (3, 4, 6)) == bound
    assert calls == ([()] if kind is BCOP2d else [(4, 6), (6, 4)])
    layer.requires_grad_(False)(x).sum().backward()
    assert x.grad is not None
