"""LipConvnets for images of any size: every stage by hand, the bound, and what is refused."""

import itertools

import pytest
import torch
from torch import nn

from skewconv import freeze
from skewconv.errors import ArgumentError, DtypeError, ShapeError
from skewconv.models import LipConvnet, resnet18
from skewconv.models.parts import CONVOLUTIONS
from skewconv.models.stages import stages
from skewconv.nn import InvertibleDownsample, lipschitz_upper_bound

# (height, width) -> the sizes behind each stage, what is folded in the end, and lines of zeros on the way.
SIZES = {
    (28, 28): ([(14, 14), (7, 7)], (7, 7), 0),
    (96, 128): ([(48, 64), (24, 32), (12, 16), (6, 8), (3, 4)], (3, 4), 0),
    (224, 224): ([(112, 112), (56, 56), (28, 28), (14, 14), (7, 7)], (7, 7), 0),
    (100, 100): ([(50, 50), (25, 25), (13, 13), (7, 7)], (7, 7), 2),
    (30, 30): ([(15, 15), (8, 8), (4, 4), (2, 2), (1, 1)], None, 1),
    (7, 20): ([(4, 10), (2, 5)], (2, 5), 1),
    (5, 5): ([], (5, 5), 0),
    (2, 3): ([], (2, 3), 0),
    (128, 128): ([(64, 64), (32, 32), (16, 16), (8, 8), (4, 4), (2, 2), (1, 1)], None, 0),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("depth", [5, 10])
def test_stages_halve_while_they_can_and_fold_what_is_left(size, depth):
    halved, folded, lines_of_zeros = SIZES[size]
    with torch.device("meta"):
        model = LipConvnet(depth, width=4, input_size=size)
    x = torch.empty(1, 3, *size, device="meta")
    met, zeros, folds = [], 0, []
    for module in model.body[:-1]:
        x = module(x)
        zeros += isinstance(module, nn.ZeroPad2d)
        if isinstance(module, InvertibleDownsample):
            folds.append(tuple(module.stride))
        elif getattr(module, "stride", None) == (2, 2):
            met.append(tuple(x.shape[2:]))
    assert met == halved
    assert folds == ([] if folded is None else [folded])
    assert zeros == lines_of_zeros
    assert x.shape == (1, model.features, 1, 1)
    convolutions = len(halved) * (depth // 5) + (0 if folded is None else depth // 5 + 1)
    assert sum(type(module).__name__ == "SOC2d" for module in model.body) == convolutions


@pytest.mark.parametrize("size", [*SIZES, (32, 32), (8, 8)])
@pytest.mark.parametrize("width", [2, 16, 32])
def test_no_filter_is_larger_than_the_largest_of_the_paper(size, width):
    # 64 times the width at 32 x 32; a fold of two channels of 7 x 7 pixels may need more at the smallest widths.
    channels, largest = 3, 0
    for row in itertools.chain(*stages(5, width, size)):
        name = type(row).__name__
        if name == "ConvRow":
            largest = max(largest, channels * row.stride**2, row.channels)
            channels = row.channels
        elif name == "FoldRow":
            channels *= row.height * row.width
    most = 64 * width if max(size) <= 32 else 128 * width
    assert largest <= max(most, 2 * 49)
    assert channels <= 32 * width


@pytest.mark.parametrize(
    ("conv", "padding_mode"),
    [*((name, "zeros") for name in CONVOLUTIONS if name != "standard"), ("soc", "circular"), ("aol", "circular")],
)
def test_a_rectangle_with_an_odd_side_is_certified_in_every_convolution(conv, padding_mode):
    torch.manual_seed(0)
    shape = (1, 9, 14)
    model = LipConvnet(5, 3, width=2, conv=conv, padding_mode=padding_mode, in_channels=1, input_size=shape[1:]).eval()
    bound = lipschitz_upper_bound(model, shape)
    assert bound <= 1 / 0.2507 * (1 + 1e-6)
    x = torch.rand(8, *shape)
    with torch.no_grad():
        moved = model(x[::2]) - model(x[1::2])
        assert bool((moved.norm(dim=1) <= bound * (x[::2] - x[1::2]).flatten(1).norm(dim=1)).all())
        torch.testing.assert_close(freeze(model, shape)(x), model(x), atol=1e-4, rtol=0)


@pytest.mark.parametrize("network", [LipConvnet(5, width=2), resnet18(width=2)], ids=["lipconvnet", "resnet"])
def test_what_is_no_batch_of_images_gets_our_own_error(network):
    model, x = network.eval(), torch.rand(2, 3, 32, 32)
    sides = "32, 32" if isinstance(model, LipConvnet) else "h, w"
    expected = rf"expected \(n, 3, {sides}\) in \[0, 1\], got "
    with pytest.raises(DtypeError, match=expected + "torch.uint8: divide"):
        model((x * 255).to(torch.uint8))
    with pytest.raises(DtypeError, match=expected + "a NumPy array of float32"):
        model(x.numpy())
    with pytest.raises(ShapeError, match=expected + r"\(3, 32, 32\): give a batch"):
        model(x[0])
    with pytest.raises(ArgumentError, match=expected + "values up to 25[0-9.]*: divide"):
        model(x * 255)
    wrong = [torch.rand(2, 1, 32, 32)] + [torch.rand(2, 3, 16, 16)] * isinstance(model, LipConvnet)
    for images in wrong:
        with pytest.raises(ShapeError, match=expected + r"\(2, "):
            model(images)


def test_values_are_left_alone_in_training_in_transforms_and_for_images_in_other_units():
    model, x = LipConvnet(5, width=2), torch.rand(2, 3, 32, 32)
    model(x * 255)
    model.eval()
    assert torch.vmap(model)(255 * x[None]).shape == (1, 2, 10)
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    assert model(x[:0]).shape == (0, 10)
    assert LipConvnet(5, width=2, mean=127.0, std=64.0).eval()(x * 255).shape == (2, 10)
