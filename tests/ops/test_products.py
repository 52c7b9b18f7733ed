"""Products by oneDNN: the same up to rounding, of factors in any memory order, and only where they may stand in."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from skewconv.nn import BCOP2d
from skewconv.nn.primitives import Dense
from skewconv.ops import products
from skewconv.ops.products import baddbmm_, bmm, by_onednn, matmul, onednn_is_faster
from tests.ops.engine_cases import Case


@pytest.fixture
def made_by_onednn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes that oneDNN multiplied, on a processor where it is the faster one for products of any size."""
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this PyTorch has no oneDNN")
    shapes: list[tuple[int, ...]] = []
    product = products._product

    def noted(a: Tensor, b: Tensor) -> Tensor:
        shapes.append((*a.shape, b.shape[1]))
        return product(a, b)

    monkeypatch.setattr(products, "_product", noted)
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


@pytest.mark.parametrize("form", ["winograd", "blocks", "matrix"])
@pytest.mark.parametrize("outputs", [3, 5])
def test_engines_and_their_gradients_are_those_of_convolutions(made_by_onednn: list, form: str, outputs: int) -> None:
    case = Case((6, 5), (3, 3), channels=5, inputs=4, outputs=outputs, degree=3, batch=3)
    x, raw = (t.float() for t in (case.image(), case.filter()))

    def run(engine: str) -> tuple[Tensor, ...]:
        leaves = x.clone().requires_grad_(), raw.clone().requires_grad_()
        y = case.apply(engine, *leaves)
        return y, *torch.autograd.grad(y.square().sum(), leaves)

    wanted, there = run("series"), len(made_by_onednn)
    found = run(form)
    assert len(made_by_onednn) > there == 0
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


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


def test_a_frozen_matrix_and_the_factors_of_bcop_are_multiplied_by_onednn(
    made_by_onednn: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = Dense(weight=torch.randn(6, 12), bias=None, input_shape=(3, 2, 2), output_shape=(6, 1, 1))
    x = torch.randn(4, 3, 2, 2)
    torch.testing.assert_close(layer(x), (x.flatten(1) @ layer.weight.T)[..., None, None])
    assert made_by_onednn == [(4, 12, 6)]
    bcop, found = BCOP2d(8, 8, 3), []
    for faster in (True, False):
        monkeypatch.setattr(products, "onednn_is_faster", lambda faster=faster: faster)
        y = bcop(torch.ones(1, 8, 4, 4))
        found.append([y, *torch.autograd.grad(y.pow(3).sum(), tuple(bcop.parameters()))])
        assert (8, 8, 8) in made_by_onednn
        made_by_onednn[:] = [(8, 8, 8)]
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert made_by_onednn == [(8, 8, 8)]


def test_other_precisions_compilers_and_stacks_on_the_tape_get_the_product_of_pytorch(made_by_onednn: list) -> None:
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    for dtype in (torch.float64, torch.complex64, torch.bfloat16):
        matmul(a.to(dtype), b.to(dtype))
    torch.func.vmap(matmul)(a[None], b[None])
    bmm(a[None].requires_grad_(), b[None]).sum().backward()
    total = torch.zeros(1, 8, 8)
    baddbmm_(total, a[None].requires_grad_(), b[None])
    total.sum().backward()
    assert by_onednn(a)
    assert not by_onednn(a.to("meta"))
    assert made_by_onednn == []


@pytest.mark.parametrize(
    ("model", "capability", "faster"),
    [
        ("AMD EPYC 9B45", "AVX512", True),
        ("AMD EPYC 7B13", "AVX2", False),
        ("Intel(R) Xeon(R) Processor @ 2.80GHz", "AVX512", False),
        (None, "AVX512", False),
    ],
)
def test_it_is_the_faster_one_where_mkl_leaves_avx_512_unused(
    monkeypatch: pytest.MonkeyPatch, model: str | None, capability: str, faster: bool
) -> None:
    monkeypatch.setattr(products, "cpu_model", lambda: model)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert onednn_is_faster.__wrapped__() is faster
