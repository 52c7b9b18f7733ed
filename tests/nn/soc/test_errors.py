"""Bad constructions and inputs of SOC layers, each refused with the reason."""

import pytest
import torch

from skewconv import nn as snn
from skewconv.errors import ArgumentError, DtypeError, ShapeError


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda: snn.SOC2d(3, 4, 3, groups=2), ArgumentError, "in_channels=3 is not divisible by groups=2"),
        (lambda: snn.SOC2d(4, 3, 3, groups=2), ArgumentError, "out_channels=3"),
        (lambda: snn.SOC2d(0, 3, 3), ArgumentError, "in_channels"),
        (lambda: snn.SOC2d(3, 2.5, 3), ArgumentError, "2.5"),
        (lambda: snn.SOC2d(3, 3, 0), ArgumentError, "kernel_size"),
        (lambda: snn.SOC2d(3, 3, (3, 3, 3)), ArgumentError, "kernel_size"),
        (lambda: snn.SOC2d(3, 3, 3, norm_bound=0), ArgumentError, "norm_bound"),
        (lambda: snn.SOC2d(3, 3, 3, series="pade"), ArgumentError, "pade"),
        (lambda: snn.SOC2d(3, 3, 3, norm="guessed"), ArgumentError, "'bound', 'tracked'.*guessed"),
        (lambda: snn.SOC2d(3, 3, 3, engine="magic"), ArgumentError, "magic"),
        (lambda: snn.SOC2d(3, 3, 3, engine="spectral"), ArgumentError, "'spectral'.*circular.*engine='auto'"),
        (lambda: snn.SOC2d(3, 3, 3, train_degree=-1), ArgumentError, "-1"),
        (lambda: snn.SOC2d(3, 3, 3, eval_tol=0), ArgumentError, "tol"),
        (lambda: snn.SOC1d(2, 2, 3, accurate=True, train_degree=3), ArgumentError, "accurate=True"),
        (lambda: snn.SOC2d(3, 3, 3, dtype=torch.complex64), DtypeError, "complex64"),
        (lambda: snn.SOC2d(3, 3, 3, dtype=torch.int32), DtypeError, "int32"),
        (lambda: snn.SUC2d(3, 3, 3, dtype=torch.float32), DtypeError, "float32"),
        (lambda: snn.SOC2d.from_filter(torch.randn(3, 2, 3, 3)), ShapeError, "3 out and 2 in"),
        (lambda: snn.SOC2d.from_filter(torch.randn(3, 3, 3)), ShapeError, "spatial axes"),
        (lambda: snn.SOC2d.from_filter(torch.randn(3, 3, 3, 3), 2, 2), ShapeError, "in_channels and out_channels"),
    ],
)
def test_bad_constructions_are_refused_with_the_reason(build, error, words):
    with pytest.raises(error, match=words):
        build()


@pytest.mark.parametrize(
    ("layer", "x", "error", "words"),
    [
        (lambda: snn.SOC2d(2, 4, 3, stride=2), torch.zeros(1, 2, 5, 4), ShapeError, r"\(5, 4\).*divisible by the"),
        (lambda: snn.SOC2d(2, 4, 3, stride=(1, 3)), torch.zeros(1, 2, 5, 4), ShapeError, "divisible"),
        (lambda: snn.SOC2d(2, 2, 3), torch.zeros(1, 3, 4, 4), ShapeError, "takes 2 channels, got 3"),
        (lambda: snn.SOC2d(2, 2, 3), torch.zeros(2, 4), ShapeError, r"\(2, 4\)"),
        (lambda: snn.SOC2d(2, 2, 3), torch.zeros(1, 2, 0, 4), ShapeError, "positive"),
        (lambda: snn.SOC2d(2, 2, 3), torch.zeros(1, 2, 4, 4, dtype=torch.complex64), DtypeError, "SUC"),
        (lambda: snn.SUC2d(2, 2, 3), torch.zeros(1, 2, 4, 4), DtypeError, "SOC"),
        (lambda: snn.SOC2d(2, 2, 3), torch.zeros(1, 2, 4, 4, dtype=torch.int64), DtypeError, "int64"),
        (lambda: snn.SOC2d(2, 2, 3), torch.zeros(1, 2, 4, 4, dtype=torch.float64), DtypeError, "float64"),
        (lambda: snn.SOCTranspose2d(4, 1, 3, stride=2), torch.zeros(1, 3, 2, 2), ShapeError, "takes 4 channels"),
    ],
)
def test_bad_inputs_are_refused_with_the_reason(layer, x, error, words):
    with pytest.raises(error, match=words):
        layer()(x)
