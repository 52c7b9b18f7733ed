"""Frozen models: the same outputs, a gain proven for what is stored, and errors instead of surprises."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from skewconv import models
from skewconv import nn as snn
from skewconv.errors import ArgumentError, ShapeError, SkewconvError
from skewconv.frozen import freeze, load_frozen, save_frozen
from skewconv.models.parts import CONVOLUTIONS
from skewconv.nn import lipschitz_upper_bound
from skewconv.nn.gains import gain_bounds
from skewconv.nn.primitives import Convolution, Dense, SkewExponential, Spectral
from skewconv.ops import dense_matrix

CIRCULAR = {"padding_mode": "circular"}

# (layer, image shape, the frozen kind expected)
LAYERS = [
    (lambda: snn.SOC2d(3, 3, 3), (3, 4, 4), Dense),
    (lambda: snn.SOC2d(2, 8, 3, stride=2), (2, 4, 4), Dense),
    (lambda: snn.SOC2d(8, 2, 3, bias=False), (8, 3, 3), Dense),
    (lambda: snn.SOC2d(4, 4, 3, groups=2, dilation=2), (4, 5, 5), None),
    (lambda: snn.SOC2d(2, 2, 3), (2, 32, 32), SkewExponential),
    (lambda: snn.SOC2d(2, 2, 3, stride=2), (2, 32, 32), SkewExponential),
    (lambda: snn.SOCTranspose2d(8, 2, 3, stride=2), (8, 16, 16), SkewExponential),
    (lambda: snn.SOCTranspose2d(8, 2, 3, stride=2), (8, 2, 2), Dense),
    (lambda: snn.SOC2d(3, 3, 3, **CIRCULAR), (3, 4, 6), Spectral),
    (lambda: snn.SOC2d(2, 4, 3, stride=2, **CIRCULAR), (2, 6, 4), Spectral),
    (lambda: snn.SOC2d(6, 2, 5, groups=2, **CIRCULAR), (6, 5, 5), Spectral),
    (lambda: snn.SOC2d(3, 3, 3, **CIRCULAR), (3, 1, 1), Spectral),
    (lambda: snn.SOCTranspose2d(8, 2, 3, stride=2, **CIRCULAR), (8, 3, 3), Spectral),
    (lambda: snn.SOC1d(3, 5, 3, **CIRCULAR), (3, 9), Spectral),
    (lambda: snn.SOC3d(2, 2, 3), (2, 2, 3, 2), Dense),
    (lambda: snn.SUC2d(2, 2, 3), (2, 3, 3), Dense),
    (lambda: snn.SUC1d(2, 2, 3, **CIRCULAR), (2, 5), None),
    (lambda: snn.BCOP2d(2, 4, 3, stride=2), (2, 4, 4), Convolution),
    (lambda: snn.SOC2d(3, 3, 3, series="taylor", eval_degree=5), (3, 4, 4), Dense),
    (lambda: snn.SOC2d(3, 3, 3, series="taylor", eval_degree=5, **CIRCULAR), (3, 4, 4), Spectral),
]


@pytest.mark.parametrize(("build", "shape", "kind"), LAYERS)
def test_a_frozen_layer_is_the_same_map_with_a_proven_gain(build, shape, kind):
    layer = build().eval()
    frozen = freeze(layer, shape).model
    if kind is not None:
        assert type(frozen) is kind
    dtype = getattr(layer, "filter_dtype", torch.float32)
    x = torch.randn(3, *shape, dtype=dtype)
    torch.testing.assert_close(frozen(x), layer(x), atol=5e-6, rtol=0)
    torch.testing.assert_close(frozen(x[0]), layer(x[0]), atol=5e-6, rtol=0)
    zero = frozen(torch.zeros(1, *shape, dtype=dtype))
    if math.prod(shape) <= 256:
        matrix = dense_matrix(lambda x: frozen(x) - zero, shape, dtype=dtype)
        values = np.linalg.svd(matrix.detach().to(torch.complex128).numpy(), compute_uv=False)
        low, high = gain_bounds(frozen)
        assert values.max() <= high + 2e-6
        assert values.min() >= low - 2e-6
        assert high <= layer.gain_bounds()[1] + 1e-6
        # Tight as well as true.
        assert values.max() >= high - (1e-5 if high <= 1 else 0.05)
    if getattr(layer, "eval_polynomial", None) is None or layer.eval_polynomial.degree is None:
        assert gain_bounds(frozen)[1] <= 1.0


@pytest.mark.parametrize(
    ("conv", "padding_mode"), [*((name, "zeros") for name in CONVOLUTIONS if name != "standard"), ("soc", "circular")]
)
def test_a_frozen_lipconvnet_gives_the_same_logits_and_comes_back_to_the_bit(conv, padding_mode, tmp_path):
    model = models.LipConvnet(10, width=4, input_size=16, conv=conv, padding_mode=padding_mode).eval()
    shape, x = (3, 16, 16), torch.rand(4, 3, 16, 16)
    frozen = freeze(model, shape)
    torch.testing.assert_close(frozen(x), model(x), atol=2e-5, rtol=0)
    bound = lipschitz_upper_bound(frozen, shape)
    assert bound <= 1 / 0.2507 * (1 + 1e-5)
    assert not any(hasattr(module, "lower") for module in frozen.model.modules())
    assert not any(p.requires_grad for p in frozen.parameters())
    again = load_frozen(save_frozen(frozen, tmp_path / "model.safetensors"))
    assert torch.equal(again(x), frozen(x))  # repeated
    assert torch.equal(copy.deepcopy(frozen)(x), frozen(x))  # repeated
    # Proven anew, by other means.
    assert lipschitz_upper_bound(again, shape) == pytest.approx(bound, rel=1e-5)


def test_a_larger_tolerance_takes_fewer_steps_from_the_tight_bound():
    layer = snn.SOC2d(4, 4, 3).eval()
    exact, rough = freeze(layer, (4, 32, 32)).model, freeze(layer, (4, 32, 32), tol=1e-3).model
    assert exact.polynomial.norm_bound < layer.polynomial().norm_bound
    assert rough.polynomial.degree < exact.polynomial.degree < layer.polynomial().degree
    x = torch.randn(2, 4, 32, 32)
    assert (exact(x) - layer(x)).norm() <= 2e-6 * x.norm()
    assert (rough(x) - layer(x)).norm() <= 1e-3 * x.norm()


def test_freezing_leaves_the_model_alone_and_does_not_follow_it():
    model = models.LipConvnet(5, width=2).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    frozen = freeze(model, (3, 32, 32))
    assert model.training
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in before.items())  # moved
    x = torch.rand(2, 3, 32, 32)
    expected = frozen(x)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3).add_(1)
    assert torch.equal(frozen(x), expected)  # repeated


def test_a_frozen_resnet_gives_the_same_logits_and_comes_back(tmp_path):
    model = models.resnet18(conv="soc", width=4)
    with torch.no_grad():
        model(torch.rand(8, 3, 16, 16))
    model.eval()
    frozen = freeze(model, (3, 16, 16))
    x = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(frozen(x), model(x), atol=1e-4, rtol=1e-4)
    assert torch.equal(load_frozen(save_frozen(frozen, tmp_path / "model.safetensors"))(x), frozen(x))  # repeated


def test_wrong_sizes_training_and_foreign_files_are_refused(tmp_path):
    frozen = freeze(models.LipConvnet(5, in_channels=1, input_size=8, width=2), (1, 8, 8))
    with pytest.raises(ShapeError, match="frozen for inputs of shape"):
        frozen(torch.rand(1, 1, 16, 16))
    with pytest.raises(ShapeError, match="frozen for inputs"):
        frozen.model.body[1](torch.rand(1, 2, 8, 8))
    with pytest.raises(ArgumentError, match="cannot be trained"):
        frozen.train()
    with pytest.raises(ArgumentError, match=r"nn\.Module"):
        freeze("model", (1, 8, 8))
    with pytest.raises(ArgumentError, match="tol"):
        freeze(nn.Identity(), (1, 8, 8), tol=0)
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(b"not a model")
    with pytest.raises(SkewconvError, match=r"bad\.safetensors"):
        load_frozen(bad)
    with pytest.raises(SkewconvError, match="missing"):
        load_frozen(tmp_path / "missing.safetensors")
    path = save_frozen(frozen, tmp_path / "model.safetensors")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(SkewconvError, match=r"model\.safetensors"):
        load_frozen(path)
    with pytest.raises(ArgumentError, match="Hardswish"):
        save_frozen(freeze(nn.Hardswish(), (4,)), tmp_path / "other.safetensors")
    assert not (tmp_path / "other.safetensors").exists()


def test_a_layer_that_meets_two_sizes_cannot_be_frozen():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = snn.SOC2d(2, 2, 3)

        def forward(self, x):
            return self.layer(x), self.layer(x[..., ::2])

    with pytest.raises(ShapeError, match="layer"):
        freeze(Twice(), (2, 4, 4))
