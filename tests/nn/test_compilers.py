"""Layers and networks under torch.compile, torch.export and torch.onnx.

The compiler leaves trained layers to eager mode; exporters refuse them and point to ``freeze``. A frozen network is
compiled in one graph, and exported with all that it needs.
"""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import skewconv
from skewconv import nn as snn
from skewconv.errors import ExportError
from skewconv.models import LipConvnet
from tests.torch_versions import needs_the_compiler

NETWORKS = {
    "soc": {},
    "soc-normalized": {"head": "normalized"},
    "bcop": {"conv": "bcop"},
    "cayley-normalized": {"conv": "cayley", "head": "normalized"},
}
SHAPE = (1, 8, 8)


def _network(name: str) -> nn.Module:
    torch.manual_seed(0)
    return LipConvnet(5, in_channels=1, input_size=8, width=2, **NETWORKS[name]).eval()


@needs_the_compiler
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize("build", [lambda: snn.SOC2d(2, 8, 3, stride=2), lambda: snn.SLL2d(2, 8, 3, stride=2)])
def test_compiled_steps_are_those_of_eager_mode_and_evaluation_notices_changed_weights(build):
    torch.manual_seed(0)
    model = nn.Sequential(build(), snn.MaxMin(), nn.Flatten(), snn.OrthogonalLinear(32, 3)).train()
    twin = copy.deepcopy(model)
    compiled = torch.compile(twin, backend="aot_eager")
    x, labels = torch.randn(4, 2, 4, 4), torch.randint(3, (4,))
    for network, run in ((model, model), (twin, compiled)):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(run(x), labels).backward()
            optimizer.step()
    torch.testing.assert_close(twin.state_dict(), model.state_dict(), atol=1e-6, rtol=1e-6)
    twin.eval()
    torch.testing.assert_close(compiled(x), twin(x))
    next(twin.parameters()).data.mul_(2).add_(0.1)
    torch.testing.assert_close(compiled(x), twin(x))


@needs_the_compiler
@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
def test_a_frozen_network_compiles_in_one_graph(padding_mode):
    model = LipConvnet(5, in_channels=1, input_size=8, width=2, padding_mode=padding_mode).eval()
    frozen, x = skewconv.freeze(model, SHAPE), torch.rand(2, *SHAPE)
    compiled = torch.compile(frozen, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x), atol=1e-5, rtol=0)


@needs_the_compiler
@pytest.mark.parametrize("name", ["soc", "bcop"])
def test_export_refuses_a_network_that_is_not_frozen(name):
    with pytest.raises(ExportError, match=r"skewconv\.freeze"):
        torch.export.export(_network(name), (torch.rand(3, *SHAPE),))


@pytest.mark.parametrize("name", ["soc", "bcop", "cayley-normalized"])
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
def test_traces_and_their_exporter_are_refused_too(tmp_path):
    pytest.importorskip("onnx", reason="onnx, of the extra export, is not installed")
    layer = snn.BCOP2d(2, 2, 3).eval()
    with pytest.raises(ExportError, match=r"skewconv\.freeze"):
        torch.onnx.export(layer, (torch.rand(1, 2, 4, 4),), tmp_path / "layer.onnx", dynamo=False)
    with pytest.raises(ExportError, match=r"skewconv\.freeze"):
        torch.jit.trace(layer, torch.rand(1, 2, 4, 4))


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
