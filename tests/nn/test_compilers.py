"""Layers and networks in eval mode under torch.compile, torch.export, torch.jit.trace and torch.onnx.

They work, or they refuse and point to ``freeze``; a frozen network is exported with all that it needs.
"""

import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import skewconv
from skewconv import nn as snn
from skewconv.errors import ExportError, SkewconvError
from skewconv.models import LipConvnet
from skewconv.nn import opaque_operator
from tests.torch_versions import needs_the_compiler

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "BCOP2d": (lambda: snn.BCOP2d(2, 2, 3), (2, 4, 4)),
    "Cayley2d": (lambda: snn.Cayley2d(2, 2, 3), (2, 4, 4)),
    "AOL2d": (lambda: snn.AOL2d(2, 2, 3), (2, 4, 4)),
    "SLL2d": (lambda: snn.SLL2d(2, 2, 3), (2, 4, 4)),
    "CPL2d": (lambda: snn.CPL2d(2, 2, 3), (2, 4, 4)),
    "OrthogonalLinear": (lambda: snn.OrthogonalLinear(6, 4), (6,)),
}
NETWORKS = {
    "soc": {},
    "soc-normalized": {"head": "normalized"},
    "bcop": {"conv": "bcop"},
    "bcop-normalized": {"conv": "bcop", "head": "normalized"},
    "cayley": {"conv": "cayley"},
    "cayley-normalized": {"conv": "cayley", "head": "normalized"},
}
SHAPE = (1, 8, 8)


def _network(name: str) -> nn.Module:
    torch.manual_seed(0)
    return LipConvnet(5, in_channels=1, input_size=8, width=2, **NETWORKS[name]).eval()


def _gradients(model: nn.Module, run: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(run(x).sin().sum(), list(model.parameters())))


@needs_the_compiler
@pytest.mark.parametrize("name", LAYERS)
def test_compiled_layers_agree_with_gradients_and_notice_changed_weights(name):
    torch.manual_seed(0)
    build, shape = LAYERS[name]
    layer, x = build().eval(), torch.randn(2, *shape)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(_gradients(layer, compiled, x), _gradients(layer, layer, x), atol=1e-5, rtol=1e-4)
    next(layer.parameters()).data.mul_(2).add_(0.1)
    torch.testing.assert_close(compiled(x), layer(x), atol=1e-5, rtol=0)


@needs_the_compiler
@pytest.mark.parametrize("name", ["soc", *(pytest.param(n, marks=pytest.mark.slow) for n in list(NETWORKS)[1:])])
def test_compiled_networks_agree_in_one_graph(name):
    model, x = _network(name), torch.rand(2, *SHAPE)
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), model(x), atol=1e-5, rtol=0)


@pytest.mark.slow
@needs_the_compiler
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_the_default_compiler_takes_a_network():
    model, x = _network("bcop"), torch.rand(2, *SHAPE)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, fullgraph=True)(x), model(x), atol=1e-5, rtol=0)


def test_a_program_from_elsewhere_finds_a_layer_of_the_same_definition_or_is_refused():
    layer, twin = snn.SOC2d(2, 2, 3).eval(), snn.SOC2d(2, 2, 3).eval()
    snn.SOC2d(2, 2, 3, norm_bound=1.0).eval()
    sources, definition = [p.detach() for p in layer._sources()], layer._definition()
    for number in (layer._number, twin._number, 10**9):
        made = opaque_operator.eval_operator(sources, 0, 0, number, definition)
        torch.testing.assert_close(made, layer.weight.detach())
    with pytest.raises(SkewconvError, match="freeze"):
        opaque_operator.eval_operator(sources, 0, 0, layer._number, definition + ", dilated by nobody")


@needs_the_compiler
@pytest.mark.parametrize("name", ["soc", "soc-normalized", "bcop", "cayley"])
def test_export_refuses_a_network_that_is_not_frozen(name):
    with pytest.raises(ExportError, match=r"skewconv\.freeze"):
        torch.export.export(_network(name), (torch.rand(3, *SHAPE),))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_frozen_network_is_exported_with_all_it_needs(name):
    model, x = _network(name), torch.rand(3, *SHAPE)
    frozen = skewconv.freeze(model, SHAPE)
    program = torch.export.export(
        frozen, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=64)},), strict=False
    )
    assert not [node for node in program.graph.nodes if "skewconv" in str(node.target)]
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    other = torch.rand(5, *SHAPE)
    torch.testing.assert_close(torch.export.load(file).module()(other), model(other), atol=1e-5, rtol=0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_the_exporter_of_traces_refuses_too(tmp_path):
    pytest.importorskip("onnx", reason="onnx, of the extra export, is not installed")
    layer = snn.BCOP2d(2, 2, 3).eval()
    with pytest.raises(ExportError, match=r"skewconv\.freeze"):
        torch.onnx.export(layer, (torch.rand(1, 2, 4, 4),), tmp_path / "layer.onnx", dynamo=False)


def test_layers_that_prove_nothing_by_value_are_exported_as_they_are():
    model = nn.Sequential(snn.Normalize(0.5, 0.2), snn.MaxMin(), nn.Flatten(), snn.NormalizedLinear(8, 3)).eval()
    x = torch.rand(2, 2, 2, 2)
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), model(x))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", ["soc", "bcop", pytest.param("cayley", marks=pytest.mark.slow)])
def test_traces_hold_the_operators_and_take_any_batch(name):
    model = _network(name)
    traced = torch.jit.trace(model, torch.rand(2, *SHAPE))
    x = torch.rand(3, *SHAPE)
    torch.testing.assert_close(traced(x), model(x), atol=1e-5, rtol=0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "name", ["soc-normalized", *(pytest.param(n, marks=pytest.mark.slow) for n in NETWORKS if n != "soc-normalized")]
)
def test_the_exporter_of_programs_refuses_and_takes_a_frozen_network(name, tmp_path):
    for package in ("onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason=f"{package}, of the extra export, is not installed")
    import onnxruntime

    model, x, path = _network(name), torch.rand(3, *SHAPE), tmp_path / "network.onnx"
    with pytest.raises(torch.onnx.OnnxExporterError, match=r"skewconv\.freeze"):
        torch.onnx.export(model, (x,), path, dynamo=True, verbose=False)
    assert not path.exists()
    batch = ({0: torch.export.Dim("batch")},)
    frozen = skewconv.freeze(model, SHAPE)
    torch.onnx.export(frozen, (x,), path, input_names=["images"], dynamic_shapes=batch, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    other = torch.rand(5, *SHAPE)
    (found,) = session.run(None, {"images": other.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), model(other).detach(), atol=1e-5, rtol=0)
