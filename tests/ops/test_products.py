"""Products by oneDNN: the same up to rounding, of factors in any memory order, and only where they may stand in."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from skewconv.nn import BCOP2d, SOC2d
from skewconv.nn.primitives import Dense, Spectral
from skewconv.ops import products
from skewconv.ops.products import addmm, baddbmm, baddbmm_, bmm, by_onednn, matmul, onednn_is_faster
from tests.ops.engine_cases import Case


@pytest.fixture
def made_by_onednn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes that oneDNN multiplied, on a processor where it is the faster one for products of any size."""
    if products.LINEAR is None:
        pytest.skip("this PyTorch has no oneDNN")
    shapes: list[tuple[int, ...]] = []
    product = products.onednn_product

    def noted(a: Tensor, b: Tensor) -> Tensor:
        shapes.append((*a.shape, b.shape[1]))
        return product(a, b)

    monkeypatch.setattr(products, "onednn_product", noted)
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(products, "_LEAST_WORK", 1)
    monkeypatch.setattr(products, "_LEAST_STACKED", 1)
    return shapes


def stack(*shape: int, order: str) -> Tensor:
    """A stack of matrices as rows, as columns, or as part of a much larger one, which oneDNN has no fast kernel for."""
    if order == "columns":
        return torch.randn(*shape[:-2], shape[-1], shape[-2]).mT
    if order == "part":
        return torch.randn(*shape[:-1], 9, shape[-1])[..., 4, :]
    return torch.randn(shape)


@pytest.mark.parametrize("left", ["rows", "columns", "part"])
@pytest.mark.parametrize("right", ["rows", "columns", "part"])
def test_products_are_those_of_float64_in_every_memory_order(made_by_onednn: list, left: str, right: str) -> None:
    a, b, total = stack(3, 20, 33, order=left), stack(3, 33, 17, order=right), torch.randn(3, 20, 17)
    exact = a.double() @ b.double()
    torch.testing.assert_close(matmul(a[0], b[0]), exact[0].float())
    torch.testing.assert_close(bmm(a, b), exact.float())
    for alpha, beta in ((1.0, 1.0), (-1.0, 0.0), (2.0, 0.5)):
        found = total.clone()
        baddbmm_(found, a, b, alpha=alpha, beta=beta)
        torch.testing.assert_close(found, (beta * total.double() + alpha * exact).float())
    # What was in memory before does not count, infinite or not.
    fresh = torch.full_like(total, torch.nan)
    baddbmm_(fresh, a, b, beta=0.0)
    torch.testing.assert_close(fresh, exact.float())
    assert made_by_onednn == [(20, 33, 17)] * 16


@pytest.mark.parametrize(
    ("form", "padding_mode", "shapes"),
    [
        # The tiles of a strip; then their gradients, and those of the filter.
        ("winograd", "zeros", {(6, 4, 5), (6, 5, 5), (6, 5, 4), (5, 6, 4), (5, 6, 5)}),
        # All pixels under the centre tap, and the longest runs under the others.
        ("blocks", "zeros", {(90, 4, 5), (90, 5, 5), (90, 5, 4), (75, 5, 5), (12, 5, 5), (5, 180, 5), (5, 24, 5)}),
        ("matrix", "zeros", {(3, 120, 150), (3, 150, 150), (3, 150, 120), (150, 3, 120), (150, 6, 150)}),
        # The symbol, the transform and its inverse, and the matrices of real frequencies.
        ("spectral", "circular", {(30, 9, 25), (9, 30, 25), (30, 30, 12), (30, 30, 15), (3, 5, 5), (5, 6, 5)}),
    ],
)
def test_engines_and_their_gradients_are_those_of_convolutions(
    made_by_onednn: list, form: str, padding_mode: str, shapes: set
) -> None:
    case = Case((6, 5), (3, 3), padding_mode, channels=5, inputs=4, outputs=5, degree=3, batch=3)
    x, raw = (t.float() for t in (case.image(), case.filter()))

    def run(engine: str) -> tuple[Tensor, ...]:
        leaves = x.clone().requires_grad_(), raw.clone().requires_grad_()
        y = case.apply(engine, *leaves)
        return y, *torch.autograd.grad(y.square().sum(), leaves)

    wanted = run("series")
    assert made_by_onednn == []
    for ours, theirs in zip(run(form), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert shapes <= set(made_by_onednn)


def test_a_product_has_derivatives_of_every_order(made_by_onednn: list) -> None:
    a, b = torch.randn(3, 4, 5, requires_grad=True), torch.randn(5, 6, requires_grad=True)

    def derivatives(product: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(product(a, b).pow(3).sum(), (a, b), create_graph=True)
        return *first, *torch.autograd.grad(sum(each.square().sum() for each in first), (a, b))

    wanted = derivatives(torch.matmul)
    assert made_by_onednn == []
    for ours, theirs in zip(derivatives(matmul), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    # A product, its two gradients, and two of each of the three in the second pass.
    assert len(made_by_onednn) == 9


def test_frozen_matrices_and_frequencies_are_multiplied_by_onednn(made_by_onednn: list) -> None:
    x = torch.randn(4, 3, 6, 6)
    dense = Dense(weight=torch.randn(10, 108), bias=None, input_shape=(3, 6, 6), output_shape=(10, 1, 1))
    torch.testing.assert_close(dense(x).flatten(1), x.flatten(1) @ dense.weight.T)
    assert made_by_onednn == [(4, 108, 10)]
    layer, x = SOC2d(3, 3, 3, padding_mode="circular").eval(), x[:, :, :5]
    frozen = layer.lower((3, 5, 6), tol=1e-4)
    assert isinstance(frozen, Spectral)
    with torch.no_grad():
        wanted = layer(x)
        made_by_onednn.clear()
        torch.testing.assert_close(frozen(x), wanted, rtol=1e-3, atol=1e-3)
    assert set(made_by_onednn) == {(30, 30, 12), (4, 3, 3), (4, 6, 6)}


def test_the_factors_of_bcop_and_their_gradients_are_multiplied_by_onednn(
    made_by_onednn: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, found = BCOP2d(8, 8, 3), []
    for faster in (True, False):
        monkeypatch.setattr(products, "onednn_is_faster", lambda faster=faster: faster)
        y = layer(torch.ones(1, 8, 4, 4))
        found.append([y, *torch.autograd.grad(y.pow(3).sum(), tuple(layer.parameters()))])
        # Björck's iteration; a filter times a factor, and both gradients of that.
        assert {(8, 8, 8), (8, 8, 4), (8, 4, 8), (16, 8, 4), (8, 16, 4)} <= set(made_by_onednn)
        there = list(made_by_onednn)
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert made_by_onednn == there


def multiplied(a: Tensor, b: Tensor) -> list[Tensor]:
    """The same by every function, each in a stack."""
    total = torch.zeros(1, len(a), b.shape[1], dtype=a.dtype)
    baddbmm_(total, a[None], b[None])
    others = [bmm(a[None], b[None])[0], baddbmm(torch.zeros_like(total), a[None], b[None], beta=0.5)[0]]
    return [matmul(a, b), addmm(torch.zeros_like(total[0]), a, b), total[0], *others]


# Forward-mode differentiation loads PyTorch's own scripts.
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_what_onednn_cannot_do_is_left_to_pytorch(made_by_onednn: list, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    for dtype in (torch.float64, torch.complex64, torch.bfloat16):
        multiplied(a.to(dtype), b.to(dtype))
    torch.func.vmap(matmul)(a[None], b[None])
    with torch.autocast("cpu"):
        assert matmul(a, b).dtype == torch.bfloat16
    with pytest.raises(RuntimeError, match="dtype"):
        matmul(a, b.double())
    with monkeypatch.context() as patch:
        # What torch.backends.mkldnn.flags(enabled=False) sets, with a warning of its own.
        patch.setattr(torch._C, "_get_mkldnn_enabled", lambda: False)
        multiplied(a, b)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(a, torch.ones_like(a))
        for made in multiplied(dual, b):
            torch.testing.assert_close(forward_ad.unpack_dual(made).tangent, torch.ones_like(a) @ b)
    assert not by_onednn(a.to("meta"))
    assert made_by_onednn == []
    # Stacks on the tape, and gradients of several outputs at once.
    x = a[None].clone().requires_grad_()
    torch.autograd.grad(bmm(x, b[None]).sum(), x)
    assert made_by_onednn == []
    y = matmul(x[0], b)
    made_by_onednn.clear()
    (found,) = torch.autograd.grad(y, x, torch.eye(64).view(64, 8, 8), is_grads_batched=True)
    torch.testing.assert_close(found[:, 0], torch.eye(64).view(64, 8, 8) @ b.T)
    assert made_by_onednn == []
    assert len(multiplied(a, b)) == len(made_by_onednn) == 5


@pytest.mark.parametrize(
    ("facts", "capability", "faster"),
    [
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 26\n", "AVX512", True),
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 26\n", "AVX2", False),
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 25\n", "AVX512", False),
        ("vendor_id\t: GenuineIntel\ncpu family\t: 6\n", "AVX512", False),
        (None, "AVX512", False),
    ],
)
def test_it_is_the_faster_one_where_that_was_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, facts: str | None, capability: str, faster: bool
) -> None:
    if facts is not None:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{facts}model\t\t: 2\n")
    monkeypatch.setattr(products, "Path", lambda name: tmp_path / Path(name).name)
    monkeypatch.setattr(products, "LINEAR", print)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    for library in (torch.backends.mkldnn, torch.backends.mkl):
        monkeypatch.setattr(library, "is_available", lambda: True)
    assert onednn_is_faster.__wrapped__() is faster
