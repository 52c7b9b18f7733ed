"""torch.compile and torch.func see through every engine."""

import pytest
import torch
from torch import Tensor

from skewconv.ops import skew_filter
from skewconv.ops.convolution_exponential import apply_polynomial
from skewconv.ops.engines import AUTO
from skewconv.ops.engines.series_engine import memory_format
from tests.ops.engine_cases import FORMS, Case, oracle
from tests.torch_versions import needs_the_compiler


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
