"""Inverses of stacks without LU factors: exact at every norm and size, with any threads, with their derivatives."""

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import skewconv
from skewconv.errors import NotFiniteError
from skewconv.nn import Cayley2d, matrix_functions
from skewconv.nn.bcop import basis_for_projector
from skewconv.nn.matrix_functions import accretive_inverse

FORBIDDEN = {"inv", "inv_ex", "inverse", "solve", "solve_ex", "lu", "lu_factor", "lu_factor_ex", "lu_solve"}


@pytest.fixture
def _two_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


def accretive(n: int, norm: float, dtype: torch.dtype, batch: int = 2) -> Tensor:
    """I + S + P with a skew S of this norm and a small positive semidefinite P."""
    raw = torch.randn(batch, n, n, dtype=torch.complex128 if dtype.is_complex else torch.float64)
    skew = raw - raw.mH
    skew = skew * (norm / torch.linalg.matrix_norm(skew, 2).clamp_min(1e-300))[:, None, None]
    return (torch.eye(n) + skew + raw[:, :1].mH @ raw[:, :1] / n).to(dtype)


def reference(matrix: Tensor) -> Tensor:
    """One matrix at a time, by NumPy, in double precision."""
    wide = matrix.detach().to(torch.complex128 if matrix.is_complex() else torch.float64)
    return torch.from_numpy(np.stack([np.linalg.inv(one) for one in wide.numpy()]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.float64, torch.complex128])
@pytest.mark.parametrize("n", [1, 2, 16, 17, 75])
def test_the_inverse_is_as_good_as_the_condition_of_the_matrix_allows(n: int, dtype: torch.dtype) -> None:
    for norm in (0.0, 1.0, 10.0, 300.0, 1e4):
        matrix = accretive(n, norm, dtype)
        error = torch.linalg.matrix_norm(accretive_inverse(matrix) - reference(matrix), 2).max()
        assert float(error) <= 64 * torch.finfo(dtype).eps * (1 + norm), norm


@pytest.mark.parametrize("spoil", [1e-3, float("nan")])
def test_in_float64_a_wrong_inverse_is_mended(spoil: float, monkeypatch: pytest.MonkeyPatch) -> None:
    real = matrix_functions._by_blocks
    monkeypatch.setattr(matrix_functions, "_by_blocks", lambda m: real(m) + spoil)
    matrix = accretive(40, 3.0, torch.complex128)
    torch.testing.assert_close(accretive_inverse(matrix), reference(matrix), atol=1e-13, rtol=0)


def test_in_float64_a_matrix_too_large_to_invert_is_refused() -> None:
    with pytest.raises(NotFiniteError, match="smaller"):
        accretive_inverse(accretive(5, 1e17, torch.float64))


@pytest.mark.parametrize("n", [3, 18])
def test_derivatives_are_exact_to_the_second_order(n: int) -> None:
    matrix = accretive(n, 2.0, torch.complex128, batch=1).requires_grad_()
    assert torch.autograd.gradcheck(accretive_inverse, matrix, fast_mode=True)
    assert torch.autograd.gradgradcheck(accretive_inverse, matrix, fast_mode=True)


@pytest.mark.usefixtures("_two_threads")
def test_wide_cayley_layers_train_rightly_on_two_threads() -> None:
    layer = Cayley2d(192, 320, 3)
    x, direction = torch.randn(2, 192, 1, 2), torch.randn(2, 320, 1, 2)
    y = layer(x)
    assert float((y.norm() / x.norm()).detach()) == pytest.approx(1.0, abs=1e-5)
    (y * direction).sum().backward()
    expected_y, expected = one_matrix_at_a_time(layer, x.double(), direction.double())
    # The norm of a filter of two million entries keeps four digits in float32; LU factors on two threads kept one.
    assert float((y.detach().double() - expected_y).norm()) <= 5e-4 * float(expected_y.norm())
    assert layer.raw_weight.grad is not None
    difference = layer.raw_weight.grad.double() - expected
    assert float(difference.norm()) <= 5e-4 * float(expected.norm())


def one_matrix_at_a_time(layer: Cayley2d, x: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """The output, and the gradient of <output, direction> in the filter, for 1 x 2 pixels in float64."""
    raw = layer.raw_weight.detach().double().requires_grad_()
    weight = layer.alpha.detach().double() * raw / raw.norm()
    columns = []
    for frequency, spectrum in enumerate(torch.fft.fft2(x).flatten(2).unbind(2)):
        signs = torch.tensor([(-1.0) ** (frequency * (w - 1)) for w in range(3)])
        symbol = (weight * signs).sum((2, 3))  # a real matrix: the waves of two pixels are 1 and -1
        n = symbol.shape[1]
        u, v, identity = symbol[:n], symbol[n:], torch.eye(n, dtype=torch.float64)
        inverse = torch.linalg.inv(identity + u - u.T + v.T @ v)
        columns.append(spectrum @ torch.cat([2 * inverse - identity, -2 * v @ inverse]).T.to(spectrum.dtype))
    y = torch.fft.ifft2(torch.stack(columns, 2).unflatten(2, (1, 2))).real
    return y.detach(), torch.autograd.grad((y * direction).sum(), raw)[0]


@pytest.mark.usefixtures("_two_threads")
def test_second_derivatives_of_wide_projectors_are_the_same_on_two_threads() -> None:
    wide, found = torch.randn(3, 200, 160, dtype=torch.float64, requires_grad=True), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        basis = basis_for_projector(wide, 80)
        (first,) = torch.autograd.grad((basis @ basis.mT).sin().sum(), wide, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), wide)[0])
    assert float((found[1] - found[0]).norm()) <= 1e-8 * float(found[0].norm())


def test_no_module_makes_lu_factors_with_torch() -> None:
    package, found = Path(skewconv.__file__).parent, []
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in FORBIDDEN:
                found += [f"{path.name}:{node.lineno}"] * (ast.unparse(node.value) in ("torch", "torch.linalg"))
            if isinstance(node, ast.ImportFrom) and node.module in ("torch", "torch.linalg"):
                found += [f"{path.name}:{node.lineno}" for alias in node.names if alias.name in FORBIDDEN]
    assert found == []
