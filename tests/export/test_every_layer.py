"""Nothing new is silently left out of export: each layer has a plain form, and each plain form is written to ONNX."""

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from skewconv.export.onnx_file import onnx_model
from skewconv.export.onnx_layers import WRITERS
from skewconv.export.python_source import expression, flat
from skewconv.frozen import freeze
from skewconv.nn import plain_layers
from skewconv.nn.plain_layers import Network
from skewconv.nn.protocol import NoPlainFormError, plain_form
from tests.nn.rows import ROWS

# Written by the file that holds the layers.
AROUND = {plain_layers.Network, plain_layers.Radius, plain_layers.ResidualSum}


def test_every_plain_layer_is_written_to_onnx():
    ours = {
        kind
        for kind in vars(plain_layers).values()
        if isinstance(kind, type) and issubclass(kind, nn.Module) and kind.__module__ == plain_layers.__name__
    }
    assert ours - AROUND == {kind for kind in WRITERS if kind.__module__ == plain_layers.__name__}


@pytest.mark.parametrize("name", ROWS)
def test_each_of_our_layers_has_a_plain_form_that_onnx_runs_or_is_refused_by_name(name):
    row = ROWS[name]
    torch.manual_seed(1)
    layer = row.build().eval().requires_grad_(False)
    frozen = freeze(layer, row.shape)
    try:
        plain = plain_form(frozen)
    except NoPlainFormError as error:
        assert len(row.shape) != 3 or "dim=" in repr(layer) or "GroupSort" in name, error  # noqa: PT017
        return
    x = torch.randn(3, *row.shape)
    torch.testing.assert_close(plain(x), layer(x), atol=2e-5, rtol=0)
    network = Network(flat(plain), None, row.shape)
    content = onnx_model(network, {}, 17, half=False).SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"images": x.numpy()})
    np.testing.assert_allclose(found, layer(x), atol=2e-5)
    # The text of the vanilla file builds the same modules.
    names = {**vars(plain_layers), "torch": torch, "nn": nn}
    again = eval(expression(network), names)
    again.load_state_dict(network.state_dict())
    assert torch.equal(again(x), network(x))
