"""Outputs follow the memory format of the input, as in PyTorch: for every layer, in every mode, and frozen."""

import pytest
import torch

import skewconv
from skewconv import nn as snn
from skewconv.models import LipConvnet
from tests.nn.rows import COMPLEX_ROWS, ROWS, Row, built

# Shapes at which the engines prefer channels last, and what a frozen layer cuts off.
MORE = {
    "SOC2d-last": Row(lambda: snn.SOC2d(16, 16, 3), (16, 4, 4), "orthogonal"),
    "SOC2d-last-stride": Row(lambda: snn.SOC2d(3, 16, 3, stride=2), (3, 8, 8), "orthogonal"),
    "SOC3d-last": Row(lambda: snn.SOC3d(16, 16, 1), (16, 8, 8, 8), "orthogonal"),
    "SOC2d-circular": Row(lambda: snn.SOC2d(3, 3, 3, padding_mode="circular"), (3, 4, 4), "orthogonal"),
}
IMAGES = [name for name, row in (ROWS | COMPLEX_ROWS | MORE).items() if len(row.shape) > 2]


@pytest.mark.parametrize("name", IMAGES)
def test_the_output_has_the_memory_format_of_the_input(name):
    layer, shape = (MORE[name].build(), MORE[name].shape) if name in MORE else built(name)
    x = torch.randn(2, *shape, dtype=getattr(layer, "filter_dtype", torch.float32))
    last = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    for module in (layer, layer.eval(), skewconv.freeze(layer, shape)):
        for order in (torch.contiguous_format, last):
            given = x.contiguous(memory_format=order)
            if order == last and given.is_contiguous():
                continue  # one channel or one pixel: both orders are one
            y = module(given)
            assert y.is_contiguous(memory_format=order), (order, y.shape, y.stride())
            if module is layer and hasattr(layer, "adjoint") and y[0, 0].numel() > 1 < y.shape[1]:
                back = module.adjoint(y.detach().contiguous(memory_format=order))
                assert back.is_contiguous(memory_format=order), (order, back.shape, back.stride())
        assert module(x).view(2, -1).shape[0] == 2


def test_between_the_layers_of_a_network_each_keeps_its_own_format():
    model = LipConvnet(10, in_channels=3, input_size=8, width=16)
    layer = next(module for module in model.modules() if isinstance(module, snn.SOC2d) and module.stride == (1, 1))
    made: list[torch.Tensor] = []
    layer.register_forward_hook(lambda module, given, y: made.append(y))
    model(torch.rand(2, 3, 8, 8))
    assert not made[0].is_contiguous()
    assert made[0].is_contiguous(memory_format=torch.channels_last)
