"""The options of training that concern the norms of SOC layers."""

import pytest

from skewconv import nn as snn
from skewconv.errors import ArgumentError
from skewconv.train import fit, recipe


def test_the_spectral_norm_regulariser_lowers_norms_and_products() -> None:
    changes = {"epochs": 2, "width": 4, "learn_scale": 0.6}
    models = [fit(recipe("digits", **changes, norm_penalty=weight)).model.eval() for weight in (0.0, 0.3)]
    layers = [[layer for layer in model.modules() if isinstance(layer, snn.SOC2d)] for model in models]
    free, penalised = (sum(layer.proven_norm_bound() for layer in each) for each in layers)
    assert penalised < 0.8 * free
    more, fewer = (sum(layer.polynomial().degree for layer in each) for each in layers)
    assert fewer < more
    with pytest.raises(ArgumentError, match="--learn-scale"):
        recipe("digits", norm_penalty=0.1)
