"""Nothing new is silently left out of export: each layer has a plain form, and each plain form is written to ONNX."""

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from skewconv.export import plain
from skewconv.export.onnx_target import onnx_model
from skewconv.export.plain import Network, plain_of
from skewconv.export.target import FileOptions, expression, flat
from skewconv.frozen import freeze
from skewconv.nn import Cayley2d, GroupSort, Householder, MaxMin, OrthogonalLinear, SOC2d
from skewconv.nn.module_tools import UnsupportedLayerError
from tests.nn.rows import ROWS
from tests.nn.test_wrapping_kernels import LAYERS as WRAPPING


def run_in_onnx(network, x):
    """The logits of the network in onnxruntime, and the ONNX model."""
    model = onnx_model(network, {}, FileOptions())
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"images": x.numpy()})[0], model


@pytest.mark.parametrize("name", ROWS)
def test_each_of_our_layers_has_a_plain_form_that_onnx_runs_or_is_refused_by_name(name):
    row = ROWS[name]
    torch.manual_seed(1)
    layer = row.build().eval().requires_grad_(False)
    frozen = freeze(layer, row.shape)
    try:
        made = plain_of(frozen.model)
    except UnsupportedLayerError as error:
        assert len(row.shape) != 3 or "dim=" in repr(layer) or "GroupSort" in name, error  # noqa: PT017
        return
    x = torch.randn(3, *row.shape)
    torch.testing.assert_close(made(x), layer(x), atol=2e-5, rtol=0)
    network = Network(flat(made), None, row.shape)
    np.testing.assert_allclose(run_in_onnx(network, x)[0], layer(x), atol=2e-5)
    # The text of the vanilla file builds the same modules.
    again = eval(expression(network), {**vars(plain), "torch": torch, "nn": nn})
    again.eval().load_state_dict(network.state_dict())
    assert torch.equal(again(x), network(x))


def test_layers_of_frequencies_are_run_with_the_batch_last_and_transposed_only_where_they_downsample():
    torch.manual_seed(2)
    soc = {"padding_mode": "circular"}
    model = nn.Sequential(
        nn.Conv2d(2, 4, 1),
        Cayley2d(4, 4, 3),
        Householder(4, order=2),
        nn.Dropout2d(),
        SOC2d(4, 8, 3, stride=(2, 1), **soc),
        MaxMin(),
        SOC2d(8, 8, 3, stride=2, groups=2, **soc),
        GroupSort(4),
        Cayley2d(8, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        OrthogonalLinear(32, 5),
    ).eval()
    shape, x = (2, 8, 4), torch.rand(3, 2, 8, 4)
    found, written = run_in_onnx(Network(flat(plain_of(freeze(model, shape).model)), None, shape), x)
    with torch.no_grad():
        np.testing.assert_allclose(found, model(x), atol=2e-5)
    # Two to and from the other order at each of three ends, one there for vectors, and two for each of two groups.
    transposes = [list(node.attribute[0].ints) for node in written.graph.node if node.op_type == "Transpose"]
    changes, downsamples, groups, flattens = 2 * 3 + 1, 2, 2, 1
    assert len(transposes) == changes + downsamples + groups + flattens


@pytest.mark.parametrize("form", ["fastest", "chain"])
@pytest.mark.parametrize("name", WRAPPING)
def test_kernels_that_wrap_more_than_once_are_exported_in_every_form(name, form):
    torch.manual_seed(1)
    layer, shape = WRAPPING[name]().eval().requires_grad_(False), (2, 1, 2)

    def choose(offers, fixed):
        return {key: next((c for c in choices if c.form == form), choices[0]) for key, choices in offers.items()}

    made = plain_of(freeze(layer, shape, choose=choose).model)
    x = torch.rand(3, *shape)
    torch.testing.assert_close(made(x), layer(x), atol=1e-5, rtol=0)
    np.testing.assert_allclose(run_in_onnx(Network(flat(made), None, shape), x)[0], layer(x), atol=1e-5)
