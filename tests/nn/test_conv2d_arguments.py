"""Arguments as users of nn.Conv2d write them: accepted where they mean what the layer does, else refused by name."""

import inspect
import re

import pytest
import torch
from torch import nn

from skewconv import nn as snn
from skewconv.errors import ArgumentError, ShapeError

GROUPED = [snn.BCOP2d, snn.Cayley2d]
ONE_GROUP = [snn.AOL2d, snn.SLL2d, snn.CPL2d]
SQUARE = [*GROUPED, *ONE_GROUP]


@pytest.mark.parametrize("kind", [snn.SOC2d, *SQUARE])
def test_a_call_written_for_conv2d_gives_images_of_the_same_shape(kind):
    x = torch.randn(2, 4, 6, 6)
    for arguments, options in (
        ((4, 4, 3, 1, 1), {}),
        ((4, 8, 3), {"stride": 2, "padding": 1, "dilation": 1, "groups": 1, "bias": False}),
        ((4, 4, (5, 5), (1, 1)), {"padding": (2, 2)}),
        ((4, 8, 1, 1, 0, 1, 1, True), {}),
    ):
        layer = kind(*arguments, **options)
        assert layer(x).shape == nn.Conv2d(*arguments, **options)(x).shape
        assert (layer.bias is None) == (options.get("bias") is False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"padding": 0}, r"'same' or \(1, 1\)"),
        ({"padding": "valid"}, "'valid'"),
        ({"padding": True}, "True"),
        ({"stride": (1, 2)}, "one stride"),
    ],
)
@pytest.mark.parametrize("kind", SQUARE)
def test_what_the_layer_does_not_do_is_refused_by_name(kind, options, words):
    with pytest.raises(ArgumentError, match=words):
        kind(4, 4, 3, **options)


@pytest.mark.parametrize("kind", [snn.SOC2d, *GROUPED])
def test_groups_and_dilation_are_those_of_conv2d(kind):
    options = {"padding": 2, "dilation": 2, "groups": 2}
    layer, plain, x = kind(4, 8, 3, **options), nn.Conv2d(4, 8, 3, **options), torch.randn(2, 4, 6, 6)
    assert layer(x).shape == plain(x).shape
    if kind is snn.BCOP2d:
        assert layer.weight.shape == plain.weight.shape
    # The groups do not meet.
    x[:, :2] = 0
    torch.testing.assert_close(layer(x)[:, :4], layer(torch.zeros_like(x))[:, :4], atol=1e-6, rtol=0)
    assert re.search(r"dilation=(2|\(2, 2\))", repr(layer))
    with pytest.raises(ArgumentError, match="in_channels=5 is not divisible by groups=2"):
        kind(5, 8, 3, groups=2)


@pytest.mark.parametrize("kind", ONE_GROUP)
def test_layers_with_one_group_name_those_that_take_more(kind):
    for name in ("groups", "dilation"):
        with pytest.raises(ArgumentError, match=f"{name}=1 only, got 2; SOC2d, BCOP2d, Cayley2d take others"):
            kind(4, 4, 3, **{name: 2})


@pytest.mark.parametrize("kind", SQUARE)
def test_sizes_and_shapes_that_do_not_fit_are_refused_by_name(kind):
    assert repr(kind(3, 4, 3)).startswith(f"{kind.__name__}(3, 4, kernel_size=3, stride=1, bias=True")
    for arguments, name in (((0, 4, 3), "in_channels"), ((4, 4.0, 3), "out_channels"), ((4, 4, (3, 5)), "kernel_size")):
        with pytest.raises(ArgumentError, match=name):
            kind(*arguments)
    with pytest.raises(ArgumentError, match="padding_mode"):
        kind(2, 2, 3, padding_mode="reflect")
    with pytest.raises(ShapeError, match=rf"{kind.__name__}.*\(n, 4, h, w\).*got \(1, 3, 4, 4\)"):
        kind(4, 4, 3)(torch.zeros(1, 3, 4, 4))
    with pytest.raises(ShapeError, match="not divisible"):
        kind(4, 4, 3, 2)(torch.zeros(1, 4, 5, 4))
    # Full signatures: what a user may pass can be read off.
    parameters = inspect.signature(kind).parameters.values()
    assert not [p for p in parameters if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]


def test_circular_layers_say_that_they_are():
    for kind in (snn.BCOP2d, snn.Cayley2d):
        assert kind(2, 2, 3, padding_mode="circular").padding_mode == "circular"
        with pytest.raises(ArgumentError, match="SOC2d takes 'zeros'"):
            kind(2, 2, 3, padding_mode="zeros")


def test_lines_and_volumes_take_the_number_too():
    assert snn.SOC1d(2, 2, 5, padding=2)(torch.randn(1, 2, 6)).shape == (1, 2, 6)
    assert snn.SOC1d(2, 2, 3, padding=4, dilation=4)(torch.randn(1, 2, 9)).shape == (1, 2, 9)
    assert snn.SOC3d(2, 2, (3, 1, 3), padding=(1, 0, 1))(torch.randn(1, 2, 2, 3, 2)).shape == (1, 2, 2, 3, 2)
    with pytest.raises(ArgumentError, match="'same' for"):
        snn.SOC1d(2, 2, 4, padding=2)
