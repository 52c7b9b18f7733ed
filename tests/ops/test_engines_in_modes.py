"""Engines in PyTorch's modes: half precision and autocast, torch.compile and torch.func."""

import pytest
import torch
from torch import Tensor

from skewconv.ops import conv_exp, skew_filter, split_filter
from skewconv.ops.convolution_exponential import apply_polynomial
from skewconv.ops.engines import AUTO
from skewconv.ops.engines.series_engine import memory_format
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


@pytest.mark.parametrize("engine", FORMS)
def test_autocast_casts_once_and_the_gradients_come_back_in_float32(engine: str) -> None:
    case = Case((4, 4), (3, 3), "circular")
    x, raw = case.image().float().requires_grad_(), case.filter().float().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = case.apply(engine, x, raw)
    assert found.dtype == torch.bfloat16
    # repeated: the same as casting by hand and running without autocast
    assert torch.equal(found, case.apply(engine, x.bfloat16(), split_filter(skew_filter(raw).bfloat16())))
    found.float().sum().backward()
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


def test_function_transforms_work_on_shapes_that_are_otherwise_stored_channels_last() -> None:
    case = Case((16, 16), (3, 3), channels=16, inputs=16, outputs=16, degree=2)
    assert memory_format(16, case.size, "zeros") == torch.channels_last
    x, raw = case.image(2), 0.05 * torch.randn(16, 16, 3, 3, dtype=torch.float64)
    one_by_one = torch.func.vmap(lambda image: case.apply_engine("series", image, raw))(x)
    torch.testing.assert_close(one_by_one, case.apply("series", x, raw), atol=1e-12, rtol=0)


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
