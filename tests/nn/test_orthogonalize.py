"""orthogonalize: what it replaces, what it leaves alone and why, and that the new model is what it says."""

import pytest
import torch
from torch import nn

from skewconv.errors import ArgumentError
from skewconv.nn import OrthogonalLinear, SOC2d, orthogonalize
from tests.certify.oracles import dense_of


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.body = nn.Sequential(
            nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False),
            nn.ReLU(),
            nn.Conv2d(16, 16, 5, padding="same", groups=2),
        )
        self.patches = nn.Conv2d(16, 4, 2, stride=2)
        self.valid = nn.Conv2d(4, 4, 3)
        self.reflect = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
        self.up = nn.ConvTranspose2d(4, 4, 2)
        self.grown = nn.ConvTranspose2d(16, 2, 3, 2, padding=1, output_padding=1)
        self.head = nn.Linear(16, 10)
        self.again = self.stem

    def forward(self, x):
        x = self.patches(self.body(self.stem(x)))
        return self.head(x.flatten(1))


def test_every_layer_that_can_be_is_replaced_and_the_rest_is_explained():
    model = Net().double()
    new, report = orthogonalize(model, eval_tol=1e-9)
    assert set(report.replaced) == {"stem", "body.0", "body.2", "patches", "grown", "head", "again"}
    assert set(report.left_alone) == {"valid", "reflect", "up"}
    assert "image size" in report.left_alone["valid"]
    assert "reflect" in report.left_alone["reflect"]
    assert "orthogonal transposed convolution (10, 10)" in report.left_alone["up"]
    assert isinstance(new.stem, SOC2d)
    assert isinstance(new.head, OrthogonalLinear)
    assert new.again is new.stem
    assert isinstance(model.stem, nn.Conv2d)
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    assert new(x).shape == model(x).shape
    assert torch.equal(new.stem.bias, model.stem.bias)  # moved
    assert new.body[0].bias is None
    assert "left alone: padding=(0, 0)" in str(report)


LAYERS = [
    (nn.Linear(16, 10), (16,)),
    (nn.Conv1d(2, 4, 3, padding=1), (2, 6)),
    (nn.Conv2d(3, 8, 3, padding=1), (3, 4, 4)),
    (nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False), (8, 4, 4)),
    (nn.Conv2d(2, 8, 4, stride=2, padding=1), (2, 6, 4)),
    (nn.Conv2d(16, 16, 5, padding="same", groups=2), (16, 3, 3)),
    (nn.Conv2d(16, 4, 2, stride=2), (16, 4, 4)),
    (nn.Conv3d(2, 4, 3, padding=1), (2, 2, 3, 2)),
    (nn.ConvTranspose1d(4, 4, 5, padding=4, dilation=2, groups=2), (4, 5)),
    (nn.ConvTranspose2d(8, 4, 2, stride=2, bias=False), (8, 3, 4)),
    (nn.ConvTranspose2d(8, 2, 4, stride=2, padding=1, groups=2), (8, 3, 4)),
    (nn.ConvTranspose2d(6, 2, 3, stride=(2, 1), padding=1, output_padding=(1, 0)), (6, 3, 4)),
    (nn.ConvTranspose3d(8, 1, 2, stride=2), (8, 2, 1, 2)),
]


@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=str)
def test_layers_keep_their_shapes_and_biases_and_become_orthogonal(layer, shape):
    options = {} if isinstance(layer, nn.Linear) else {"eval_tol": 1e-9}
    new, report = orthogonalize(layer.double().eval(), **options)
    assert f"{type(layer).__name__} -> " in report.replaced[""]
    x = torch.randn(2, *shape, dtype=torch.float64)
    assert new(x).shape == layer(x).shape
    assert float((torch.linalg.svdvals(dense_of(new, shape)) - 1).abs().max()) < 1e-8
    if layer.bias is not None:
        assert torch.equal(new.bias, layer.bias)  # moved


def test_skip_linear_inplace_and_subclasses():
    class Special(nn.Conv2d):
        pass

    model = nn.Sequential(nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1), nn.Linear(2, 2), Special(2, 2, 1)).eval()
    new, report = orthogonalize(model, linear=False, skip=lambda name, module: name == "1", inplace=True)
    assert new is model
    assert set(report.replaced) == {"0"}
    assert report.left_alone["1"] == "skipped as asked"
    assert report.left_alone["2"] == "linear=False"
    assert "Special" in report.left_alone["3"]
    assert not model[0].training


def test_layers_of_another_size_and_what_is_no_model_are_named():
    model = nn.Sequential(nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1), nn.ReLU(), nn.ConvTranspose1d(2, 2, 3))
    report = orthogonalize(model).report
    assert set(report.left_alone) == {"0", "2"}
    assert "makes (43, 43) of (22, 22)" in report.left_alone["0"]
    assert "  2: left alone" in str(report)
    with pytest.raises(ArgumentError, match=r"nn\.Module"):
        orthogonalize(lambda x: x)
