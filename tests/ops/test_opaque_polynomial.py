"""Compiled training on a processor: engines run inside, and values and gradients are those of the dense Jacobian."""

import pytest
import torch
from torch import Tensor

from skewconv.nn import OrthogonalLinear, SOC2d
from skewconv.nn.matrix_exponential import _opaque_columns
from skewconv.nn.soc.free_half import _opaque_assemble, _opaque_fold, packed_shape, taps_of
from skewconv.ops import opaque_polynomial, skew_filter
from skewconv.ops.convolution_exponential import apply_polynomial
from skewconv.ops.engines import ENGINES
from tests.ops.engine_cases import FORMS, Case, forced_form, oracle
from tests.torch_versions import needs_the_compiler

CASES = {
    "convolutions": Case((5, 4), (3, 3), inputs=2, outputs=1),
    "columns": Case((4, 3), (3, 3), inputs=2, outputs=1),
    "winograd": Case((9, 6), (3, 3), inputs=2, outputs=3),
    "blocks": Case((3, 2), (3, 3), inputs=2, outputs=3),
    "matrix": Case((2, 3), (3, 3), inputs=3, outputs=2, inverse=True),
    "groups": Case((4,), (3,), groups=2, channels=2, inputs=1, outputs=2, degree=5),
    "recompute": Case((4, 4), (3, 3), recompute=True, degree=6),
    "reach": Case((2, 1), (5, 5), degree=2),
    "degree-1": Case((3, 3), (3, 3), degree=1, inputs=2, outputs=1),
}


@pytest.fixture(autouse=True)
def forget() -> None:
    """So many programs of one function are one too many for the compiler."""
    torch.compiler.reset()


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The engines that arranged something while nobody traced them."""
    found: list[str] = []
    for engine in ENGINES.values():

        def spy(x: Tensor, *rest, _name=engine.name, _arrange=engine.arrange):
            found.append(_name)
            return _arrange(x, *rest)

        monkeypatch.setattr(engine, "arrange", spy)
    return found


@needs_the_compiler
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("wanted", ["both", "x", "weight"])
def test_values_and_gradients_are_those_of_the_dense_jacobian(name: str, wanted: str, ran: list[str]) -> None:
    case = CASES[name]
    engine = FORMS.get(name, "auto")
    x, raw = case.image(), case.filter()
    leaves = [t.requires_grad_() for t, which in ((x, "x"), (raw, "weight")) if wanted in (which, "both")]
    p, geometry = case.polynomial, case.geometry

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(x: Tensor, skew: Tensor) -> Tensor:
        return apply_polynomial(
            x,
            skew,
            p,
            geometry,
            out_channels=case.groups * case.outputs,
            inverse=case.inverse,
            engine=engine,
            recompute=case.recompute,
        )

    expected = oracle(case, x, raw)
    direction = torch.randn_like(expected)
    with forced_form(name):
        found = compiled(x, skew_filter(raw, case.groups))
        gradients = torch.autograd.grad(found, leaves, direction)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    assert ran
    assert engine in (*ran, "auto")
    for left, right in zip(gradients, torch.autograd.grad(expected, leaves, direction), strict=True):
        torch.testing.assert_close(left, right, atol=1e-12, rtol=0)


def test_every_form_that_serves_zero_padding_is_among_the_cases() -> None:
    assert set(FORMS) - set(CASES) == {"spectral"}


@needs_the_compiler
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_one_program_serves_every_batch() -> None:
    case = CASES["winograd"]
    raw, counts = case.filter(), []
    skew, p, geometry = skew_filter(raw).requires_grad_(), case.polynomial, case.geometry

    def backend(graph, inputs):
        counts.append(1)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    compiled = torch.compile(
        lambda x: apply_polynomial(x, skew, p, geometry, out_channels=case.outputs),
        backend=backend,
        dynamic=True,
        fullgraph=True,
    )
    made = []
    for batch in (4, 5, 7):
        x = case.image(batch)
        torch.testing.assert_close(compiled(x), oracle(case, x, raw), atol=1e-12, rtol=0)
        made.append(len(counts))
    assert made == made[:1] * 3


@needs_the_compiler
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_what_is_not_served_so_is_written_out(dtype: torch.dtype) -> None:
    case = Case((4, 4), (3, 3), "circular" if dtype == torch.float64 else "zeros")
    x, skew = case.image().to(dtype), skew_filter(case.filter()).to(dtype).requires_grad_()
    seen = []

    def backend(graph, inputs):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    p, geometry = case.polynomial, case.geometry
    torch.compile(lambda x: apply_polynomial(x, skew, p, geometry), backend=backend)(x)
    assert not any("skewconv" in name for name in seen)


@needs_the_compiler
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_a_layer_without_gradients_is_written_out_for_exporters() -> None:
    layer = SOC2d(3, 3, 3).train().requires_grad_(False)
    program = torch.export.export(layer, (torch.randn(2, 3, 4, 4),))
    assert not any("polynomial" in str(node.target) for node in program.graph.nodes)


@needs_the_compiler
def test_an_exported_head_needs_no_operator_of_this_library() -> None:
    head, x = OrthogonalLinear(16, 3).train(), torch.randn(2, 16)
    program = torch.export.export(head, (x,))
    assert not any("skewconv" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(x), head(x), atol=1e-5, rtol=0)


def arguments(case: Case, x: Tensor, skew: Tensor) -> tuple:
    p, g = case.polynomial, case.geometry
    polynomial = (p.series, p.norm_bound, list(p.coefficients), p.truncation_error)
    geometry = (list(g.kernel), list(g.dilation), g.groups, g.padding_mode)
    return x, skew, *polynomial, *geometry, case.outputs, case.inverse, "auto", False, case.degree


@needs_the_compiler
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_the_operators_are_what_they_are_declared_to_be() -> None:
    case = CASES["winograd"]
    x, skew = case.image().requires_grad_(), skew_filter(case.filter()).detach().requires_grad_()
    torch.library.opcheck(opaque_polynomial._forward, arguments(case, x, skew))
    taps = taps_of((3, 3))
    shape = [list(t) for t in (taps.kernel, taps.free, taps.mirrored)]
    free, centre = torch.randn(4, 6, 3, requires_grad=True), torch.randn(2, *packed_shape(3), requires_grad=True)
    torch.library.opcheck(_opaque_assemble, (free, centre, *shape, 3))
    torch.library.opcheck(_opaque_fold, (torch.randn(6, 3, 3, 3), *shape, 2))
    square = torch.randn(8, 8, dtype=torch.float64)
    torch.library.opcheck(_opaque_columns, ((square - square.T).requires_grad_(), 2, True))
