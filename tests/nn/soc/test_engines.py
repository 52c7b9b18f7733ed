"""A layer and its engine, for every engine and every series in the tables: one map, and the engine's own refusals."""

import re

import pytest
import torch

from skewconv.errors import ArgumentError
from skewconv.nn import SOC2d
from skewconv.ops.convolution import Geometry
from skewconv.ops.engines import ENGINES

PADDINGS = ("zeros", "circular")


def refusal(engine: str, padding_mode: str) -> str:
    return ENGINES[engine].refusal(Geometry.of((3, 3), padding_mode, 1, 1), None)


SERVED = [(engine, padding) for engine in ENGINES for padding in PADDINGS if not refusal(engine, padding)]
REFUSED = [(engine, padding) for engine in ENGINES for padding in PADDINGS if refusal(engine, padding)]


def test_every_engine_serves_a_layer() -> None:
    assert {engine for engine, _ in SERVED} == set(ENGINES)


@pytest.mark.parametrize("series", ["taylor", "chebyshev"])
@pytest.mark.parametrize(("engine", "padding_mode"), SERVED)
def test_the_layer_is_the_same_map_with_every_engine(engine: str, padding_mode: str, series: str) -> None:
    torch.manual_seed(0)
    layers = [
        SOC2d(2, 3, 3, padding_mode=padding_mode, series=series, dtype=torch.float64, engine=name)
        for name in ("auto", engine)
    ]
    layers[1].load_state_dict(layers[0].state_dict())
    x = torch.randn(4, 2, 5, 4, dtype=torch.float64)
    outputs, gradients = [], []
    for layer in layers:
        y = layer.train()(x)
        outputs += [y.detach(), layer.eval()(x).detach()]
        gradients.append(torch.autograd.grad(y.square().sum(), list(layer.parameters())))
    for left, right in [(outputs[0], outputs[2]), (outputs[1], outputs[3]), *zip(*gradients, strict=True)]:
        torch.testing.assert_close(left, right, atol=1e-11, rtol=0)
    assert layers[0].gain_bounds() == layers[1].gain_bounds()


@pytest.mark.parametrize(("engine", "padding_mode"), REFUSED)
def test_a_layer_refuses_an_engine_in_the_words_of_the_engine(engine: str, padding_mode: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(refusal(engine, padding_mode))) as info:
        SOC2d(2, 3, 3, padding_mode=padding_mode, engine=engine)
    assert repr(engine) in str(info.value)
    assert "engine='auto'" in str(info.value)
