"""LipConvnet against a literal reading of Table 1 and at any size, and its Lipschitz bound against an adversary."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from skewconv import freeze
from skewconv.certify import radii
from skewconv.errors import ArgumentError, DtypeError, ShapeError
from skewconv.models import LipConvnet, resnet18
from skewconv.models.lipconvnet import stages
from skewconv.models.parts import CONVOLUTIONS
from skewconv.nn import InvertibleDownsample, SOC2d, lipschitz_upper_bound

DEPTHS = (5, 10, 15, 20, 25, 30, 35, 40)

# Table 1 of the paper: output size, then (kernel, channels, stride, repeats) with n for LipConvnet-n.
TABLE_1 = [
    (16, [(3, 32, 1, "n/5-1"), (3, 64, 2, "1")]),
    (8, [(3, 64, 1, "n/5-1"), (3, 128, 2, "1")]),
    (4, [(3, 128, 1, "n/5-1"), (3, 256, 2, "1")]),
    (2, [(3, 256, 1, "n/5-1"), (3, 512, 2, "1")]),
    (1, [(3, 512, 1, "n/5-1"), (1, 1024, 2, "1")]),
]


def _literal(depth: int):
    """(kernel, channels in, channels out, stride, output size) of each convolution, row by row from the table."""
    layers, channels, before = [], 3, 32
    for size, rows in TABLE_1:
        for kernel, out, stride, repeats in rows:
            for _ in range(depth // 5 - 1 if repeats == "n/5-1" else 1):
                layers.append((kernel, channels, out, stride, size if stride == 2 else before))
                channels = out
        before = size
    assert len(layers) == depth
    return layers


@pytest.mark.parametrize("depth", DEPTHS)
def test_shapes_and_parameters_are_those_of_table_1(depth):
    with torch.device("meta"):
        model = LipConvnet(depth)
        convolutions = [m for m in model.modules() if isinstance(m, SOC2d)]
    literal = _literal(depth)
    assert len(convolutions) == depth
    x = torch.empty(1, 3, 32, 32, device="meta")
    outputs = []
    for module in model.body[1:-1]:
        x = module(x)
        outputs.append(tuple(x.shape[1:]))
    # Each convolution is followed by MaxMin, which keeps the shape.
    assert outputs == [(out, size, size) for _, _, out, _, size in literal for _ in range(2)]
    parameters = 0
    for layer, (kernel, c_in, c_out, stride, _) in zip(convolutions, literal, strict=True):
        assert layer.kernel_size == (kernel, kernel)
        m = max(c_in * stride**2, c_out)
        # The paper's filter has m m k k entries; the free half of the skew filter made from it is what counts.
        parameters += (m * m * kernel**2 - m) // 2 + c_out
    assert sum(p.numel() for layer in convolutions for p in layer.parameters()) == parameters
    head = 1024 * 1023 // 2 + 10
    assert sum(p.numel() for p in model.parameters()) == parameters + head


def _train(model: nn.Module, steps: int) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x, y = torch.rand(8, 3, 32, 32), torch.arange(8) % 10
    model.train()
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(10 * model(x), y).backward()
        optimiser.step()
    model.eval()


def _largest_ratio(model: nn.Module, steps: int = 30) -> float:
    """max ||f(x) - f(y)|| / ||x - y|| by gradient ascent from close and from distant pairs."""
    x = torch.rand(6, 3, 32, 32, dtype=torch.float64)
    scale = torch.tensor([1e-3, 1e-3, 1e-1, 1e-1, 1.0, 1.0], dtype=torch.float64).view(-1, 1, 1, 1)
    pair = torch.stack([x, x + scale * torch.randn_like(x)]).requires_grad_()
    best = 0.0
    for _ in range(steps):
        ratio = (model(pair[0]) - model(pair[1])).norm(dim=1) / (pair[0] - pair[1]).flatten(1).norm(dim=1)
        best = max(best, float(ratio.detach().max()))
        (grad,) = torch.autograd.grad(ratio.sum(), pair)
        step = grad / grad.flatten(2).norm(dim=2).clamp_min(1e-12)[..., None, None, None]
        pair = (pair + 0.5 * scale * step).detach().requires_grad_()
    return best


@pytest.mark.parametrize(
    ("depth", "trained"),
    [
        (5, False),
        (5, True),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [(20, False), (20, True), (40, True)]),
    ],
)
def test_no_pair_of_images_beats_the_proven_bound(depth, trained):
    model = LipConvnet(depth, width=4)
    if trained:
        _train(model, 3)
    model.double().eval()
    bound = lipschitz_upper_bound(model, (3, 32, 32))
    assert bound <= 1 / 0.2507 * (1 + 1e-6)
    found = _largest_ratio(model)
    assert found <= bound
    # The adversary is a real one: it comes near the bound.
    assert found >= 0.4 * bound


@pytest.mark.parametrize(
    ("conv", "activation", "head"),
    [
        *((name, "maxmin", "orthogonal") for name in CONVOLUTIONS if name != "standard"),
        ("soc", "groupsort", "normalized"),
        ("bcop", "householder", "conv"),
        ("sll", "householder2", "normalized"),
    ],
)
def test_every_part_runs_forward_and_backward(conv, activation, head):
    model = LipConvnet(5, 7, width=4, conv=conv, activation=activation, head=head)
    logits = model(torch.rand(3, 3, 32, 32))
    assert logits.shape == (3, 7)
    F.cross_entropy(logits, torch.tensor([0, 3, 6])).backward()
    for name, p in model.named_parameters():
        assert p.grad is not None or not p.numel(), name
        assert not p.numel() or bool(p.grad.isfinite().all()), name
    limit = 1 / 0.2507 * (7**0.5 if head == "normalized" else 1.0)
    assert lipschitz_upper_bound(model.eval(), (3, 32, 32)) <= limit * (1 + 1e-4)


@pytest.mark.parametrize("conv", [name for name in CONVOLUTIONS if name != "standard"])
def test_a_head_of_the_networks_own_kind_is_certified_and_frozen_as_any_layer(conv):
    torch.manual_seed(0)
    model = LipConvnet(5, 7, width=4, conv=conv, head="conv", in_channels=1, input_size=8).eval()
    kinds = {type(m) for m in model.body if isinstance(m, nn.Module)}
    assert type(model.head[0]) in kinds
    assert model.head[0](torch.rand(2, model.features, 1, 1)).shape == (2, 7, 1, 1)
    images = torch.rand(6, 1, 8, 8, dtype=torch.float64)
    exact = copy.deepcopy(model).double()
    logits = exact(images)
    labels, bound = logits.argmax(1), lipschitz_upper_bound(exact, (1, 8, 8))
    assert bound * 0.2507 == pytest.approx(1, abs=1e-5)
    two = logits.topk(2).values
    expected = (two[:, 0] - two[:, 1]) / (2**0.5 * bound)
    torch.testing.assert_close(radii(exact, images, labels), expected.detach(), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(freeze(model, (1, 8, 8))(images.float()), model(images.float()), rtol=0, atol=1e-4)


def test_circular_padding_and_convolution_options_reach_every_layer_and_a_norm_bound_the_3_x_3_filters():
    options = {"eval_degree": 4, "series": "taylor", "train_degree": 3, "norm_bound": 3.0}
    model = LipConvnet(5, width=2, padding_mode="circular", conv_options=options)
    layers = [m for m in model.modules() if isinstance(m, SOC2d)]
    for layer in layers:
        assert layer.padding_mode == "circular"
        assert (layer.polynomial().degree, layer.polynomial(training=True).degree) == (4, 3)
    assert {layer.kernel_size: layer.norm_bound for layer in layers} == {(3, 3): 3.0, (1, 1): 1.0}
    assert model.eval()(torch.rand(1, 3, 32, 32)).shape == (1, 10)


def test_large_images_alone_may_be_padded_circularly():
    for size, least, modes in ((32, 8, "ccooo"), (32, 64, "ooooo"), ((24, 64), 8, "coooo"), (28, 14, "coo")):
        model = LipConvnet(5, width=2, input_size=size, circular_from=least)
        found = "".join(m.padding_mode[0] for m in model.modules() if isinstance(m, SOC2d))
        assert found[: len(modes)].replace("z", "o") == modes


def test_per_channel_normalisation_enters_the_bound_once():
    model = LipConvnet(5, width=2, std=(0.5, 0.25, 0.125)).eval()
    assert lipschitz_upper_bound(model, (3, 32, 32)) == pytest.approx(8.0, rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"depth": 7}, "multiple of 5"),
        ({"depth": 0}, "at least 5"),
        ({"width": 3}, "even"),
        ({"width": 0}, "even"),
        ({"input_size": 1}, "at least 2"),
        ({"input_size": (32, 1)}, "at least 2"),
        ({"input_size": (32, 32, 32)}, "a height and a width"),
        ({"input_size": 32.0}, "an integer"),
        ({"conv": "standard"}, "not 1-Lipschitz"),
        ({"conv": "fourier"}, "'soc', 'bcop', 'cayley'"),
        ({"activation": "relu"}, "'maxmin'"),
        ({"head": "linear"}, "'orthogonal', 'normalized'"),
        ({"circular_from": 0}, "at least 1"),
        ({"std": 0.0}, "std"),
    ],
)
def test_bad_arguments_are_refused_with_what_is_allowed(arguments, words):
    with pytest.raises(ArgumentError, match=words):
        LipConvnet(**{"depth": 5, **arguments})


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
    for images, error, words in (
        ((x * 255).to(torch.uint8), DtypeError, "torch.uint8: divide"),
        (x[0], ShapeError, r"\(3, 32, 32\): give a batch"),
        (x[:, :1], ShapeError, r"\(2, 1, "),
        *[(x[..., ::2, ::2], ShapeError, r"\(2, 3, ")] * isinstance(model, LipConvnet),
    ):
        with pytest.raises(error, match=rf"expected \(n, 3, {sides}\) in \[0, 1\], got {words}"):
            model(images)
