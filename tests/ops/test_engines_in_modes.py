"""Engines in PyTorch's modes: half precision, autocast, torch.compile, torch.func; and what they keep in memory."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from skewconv.ops import conv_exp, skew_filter, split_filter
from skewconv.ops.convolution_exponential import AUTO, apply_polynomial
from skewconv.ops.series import SERIES
from tests.ops.engine_cases import FORMS, Case, oracle
from tests.torch_versions import needs_the_compiler


@pytest.mark.parametrize("engine", FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_good_as_its_rounding(engine: str, dtype: torch.dtype) -> None:
    case = Case((4, 4), (3, 3), "circular")
    x, raw = case.image().to(dtype).requires_grad_(), case.filter().to(dtype).requires_grad_()
    found = case.apply(engine, x, raw)
    assert found.dtype == dtype
    direction = torch.randn_like(found)
    found.backward(direction)
    wide, wide_raw = x.detach().double().requires_grad_(), raw.detach().double().requires_grad_()
    expected = oracle(case, wide, wide_raw)
    expected.backward(direction.double())
    eps = 4 * torch.finfo(dtype).eps
    for left, right in ((found, expected), (x.grad, wide.grad), (raw.grad, wide_raw.grad)):
        assert left.dtype == dtype
        assert (left - right).norm() <= eps * right.norm()


@pytest.mark.parametrize("batch", [2, 40])
def test_frequencies_of_bfloat16_images_are_multiplied_in_bfloat16(monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    multiplied, product = [], torch.bmm

    def noted(a: Tensor, b: Tensor) -> Tensor:
        multiplied.append(a.dtype)
        return product(a, b)

    monkeypatch.setattr(torch, "bmm", noted)
    case = Case((4, 4), (3, 3), "circular", batch=batch)
    for dtype, expected in ((torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16)):
        multiplied.clear()
        case.apply("spectral", case.image().to(dtype), case.filter().to(dtype))
        assert set(multiplied) == {expected}


@pytest.mark.parametrize("engine", FORMS)
def test_autocast_casts_once_and_the_gradients_come_back_in_float32(engine: str) -> None:
    case = Case((4, 4), (3, 3), "circular")
    x, raw = case.image().float().requires_grad_(), case.filter().float().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = case.apply(engine, x, raw)
        found.float().sum().backward()  # in the precision of the forward pass, not in that of the caller
    assert found.dtype == torch.bfloat16
    # repeated: the same as casting by hand and running without autocast
    assert torch.equal(found, case.apply(engine, x.bfloat16(), split_filter(skew_filter(raw).bfloat16())))
    assert x.grad.dtype == raw.grad.dtype == torch.float32


def test_autocast_leaves_complex_images_alone_and_takes_mixed_real_ones() -> None:
    skew = 0.1 * skew_filter(torch.randn(2, 2, 3, 3, dtype=torch.complex64))
    x = torch.randn(1, 2, 4, 4, dtype=torch.complex64)
    expected = conv_exp(x, skew, norm_bound=5.0, degree=4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(conv_exp(x, skew, norm_bound=5.0, degree=4), expected)
        mixed = conv_exp(x.real.bfloat16(), 0.1 * skew_filter(torch.randn(2, 2, 3, 3)), norm_bound=5.0, degree=4)
    assert mixed.dtype == torch.bfloat16


def test_float64_is_left_alone_by_autocast() -> None:
    case = Case((4, 4), (3, 3))
    x, raw = case.image(), case.filter()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert case.apply("series", x, raw).dtype == torch.float64
        torch.testing.assert_close(case.apply("series", x, raw), oracle(case, x, raw), atol=1e-12, rtol=0)


@needs_the_compiler
@pytest.mark.parametrize("engine", ["spectral", AUTO])
def test_compiled_evaluation_agrees(engine: str) -> None:
    case = Case((4, 4), (3, 3), "circular", inputs=2)
    x, raw = case.image(), case.filter()
    skew, p, geometry = skew_filter(raw), case.polynomial, case.geometry

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(x: Tensor, skew: Tensor) -> Tensor:
        return apply_polynomial(x, skew, p, geometry, engine=engine)

    with torch.no_grad():
        torch.testing.assert_close(compiled(x, skew), oracle(case, x, raw), atol=1e-12, rtol=0)


@pytest.mark.parametrize("engine", [*FORMS, AUTO])
def test_function_transforms_see_through(engine: str) -> None:
    case = Case((4, 4), (3, 3), "circular", inputs=2)
    x, raw = case.image(3), case.filter()
    one_by_one = torch.func.vmap(lambda image: case.apply(engine, image, raw))(x)
    torch.testing.assert_close(one_by_one, oracle(case, x, raw), atol=1e-12, rtol=0)
    grad = torch.func.grad(lambda raw: case.apply(engine, x, raw).square().sum())(raw)
    leaf = raw.clone().requires_grad_()
    oracle(case, x, leaf).square().sum().backward()
    torch.testing.assert_close(grad, leaf.grad, atol=1e-11, rtol=0)


@pytest.mark.parametrize("engine", FORMS)
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_any_memory_order_of_image_filter_and_gradient_will_do(engine: str, order: torch.memory_format) -> None:
    case = Case((4, 3), (3, 3), "circular", inputs=2)
    x, raw = case.image().requires_grad_(), case.filter().requires_grad_()
    expected = oracle(case, x, raw)
    direction = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, (x, raw), direction)
    found = case.apply(engine, x.contiguous(memory_format=order), raw.contiguous(memory_format=order))
    grads = torch.autograd.grad(found, (x, raw), direction.transpose(2, 3).contiguous().transpose(2, 3))
    for left, right in zip((found, *grads), (expected, *wanted), strict=True):
        torch.testing.assert_close(left, right, atol=1e-12, rtol=0)


def given_up(y: Tensor) -> list[Tensor]:
    """What the nodes of a graph hold besides saved tensors, to be given up on the way back."""
    found, pending = [], [y.grad_fn]
    while pending:
        node = pending.pop()
        found += getattr(node, "disposable_terms", None) or []
        pending += [parent for parent, _ in node.next_functions if parent is not None]
    return found


@pytest.mark.parametrize("engine", FORMS)
def test_recomputing_keeps_as_little_at_any_degree(engine: str) -> None:
    def kept(degree: int, recompute: bool) -> int:
        case = Case((3, 3), (3, 3), "circular", degree=degree, recompute=recompute)
        stored: dict[int, int] = {}
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda t: stored.update({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()}) or t, lambda t: t
        )
        with hooks:
            y = case.apply(engine, case.image().requires_grad_(), case.filter().requires_grad_())
        return sum(stored.values()) + sum(t.nbytes for t in given_up(y))

    assert kept(16, recompute=True) == kept(4, recompute=True)
    assert kept(16, recompute=False) > kept(4, recompute=False)


@pytest.mark.parametrize("series", SERIES)
@pytest.mark.parametrize("degree", [1, 2, 3, 4, 9])
def test_recomputed_gradients_are_the_stored_ones_also_the_second_time(degree: int, series: str) -> None:
    case = Case((6, 6), (3, 3), degree=degree, series=series)
    x, raw = case.image().requires_grad_(), case.filter().requires_grad_()
    expected = torch.autograd.grad(case.apply("series", x, raw).square().sum(), (x, raw))
    loss = replace(case, recompute=True).apply("series", x, raw).square().sum()
    for _ in range(2):
        found = torch.autograd.grad(loss, (x, raw), retain_graph=True)
        torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)
