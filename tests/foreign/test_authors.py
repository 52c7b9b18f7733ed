"""Networks and layers of the authors' code compute here what they computed there."""

import math

import pytest
import torch

from skewconv.foreign import ForeignWeightsError, lipconvnet_from_authors, soc_from_authors
from skewconv.nn import lipschitz_upper_bound
from tests.foreign import theirs

IMAGES = torch.rand(2, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
NETWORKS = {
    "two blocks, householder": {"blocks": 2, "activation": "hh1"},
    "more classes than features": {"classes": 70},
    "of 2021": {"year": 2021},
    "normalised head": {"lln": True},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_gives_the_logits_of_theirs(name):
    options = {"blocks": 1, "year": 2022, **NETWORKS[name]}
    state = theirs.network_state(**options)
    imported = lipconvnet_from_authors(state)
    expected = theirs.network(state, IMAGES, options["year"])
    with torch.no_grad():
        found = imported.model(IMAGES)
    torch.testing.assert_close(found, expected, atol=2e-9, rtol=0)
    assert imported.year == options["year"]
    # The normalisation is the first module, so that the bound is in pixels.
    # Taylor's polynomial of degree 10, which SOC has in 2021, stretches by a little, and the bound says so.
    if imported.config.head == "conv":
        assert lipschitz_upper_bound(imported.model, (3, 32, 32)) * 0.2507 == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(("read", "kept", "stride"), [(2, 8, 2), (3, 4, 2), (4, 4, 1), (5, 3, 1)])
def test_a_layer_computes_what_theirs_does(read, kept, stride):
    x, state = theirs.normal(2, read, 8, 8), theirs.soc_state(read * stride**2, kept, 3)
    layer = soc_from_authors(state, in_channels=read, stride=stride)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), theirs.soc(state, theirs.folded(x, stride), 12), atol=1e-9, rtol=0)


@pytest.fixture(scope="module")
def soc_state():
    torch.manual_seed(0)
    return theirs.network_state(1)


def _without(state, word):
    return {name: value for name, value in state.items() if word not in name}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s: {"conv1.weight": torch.ones(3)}, r"1 entries that fit no layout, such as 'conv1.weight'.*known is"),
        (lambda s: _without(s, "random_conv_filter"), "layer1.0.conv has .* is no SOC layer"),
        (lambda s: _without(s, "last_layer"), "without last_layer and final_conv"),
        (lambda s: _without(s, "layer4"), r"the stages have \[1, 1, 1, 0, 1\]"),
        (lambda s: s | {"layer1.0.activation.theta0": torch.ones(2)}, "HouseHolder_Order_2, with three angles"),
        (lambda s: s | {"layer2.0.conv.correction": torch.tensor([0.9])}, "layer2.0.conv .*correction is 0.9"),
        (lambda s: s | {"layer2.0.conv.bias": torch.ones(6)}, "layer2.0.conv does not fit a LipConvnet-5 of width 2"),
        (lambda s: s | {"layer2.0.conv.bias": torch.full((8,), math.nan)}, "'bias' of .* holds NaN"),
        (lambda s: s | {"last_layer.random_conv_filter": torch.ones(9, 9, 1, 1)}, "last_layer does not fit 64"),
        (lambda s: s | {"last_layer.bias": torch.ones(3, dtype=torch.int64)}, "int64: weights are floating-point"),
        (lambda s: s | {"layer1.0.conv.bias": 3}, "here 'layer1.0.conv.bias' is a int"),
    ],
)
def test_what_fits_nothing_is_refused_with_what_came_and_what_is_known(spoil, message, soc_state):
    with pytest.raises(ForeignWeightsError, match=message):
        lipconvnet_from_authors(spoil(soc_state))
