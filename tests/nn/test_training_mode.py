"""In training mode, too, norms of signals and gradients are kept, filters turn as the authors' do, networks learn."""

import math
import re
from collections.abc import Iterator
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skewconv import nn as snn
from skewconv.algorithm_1 import LiteralHead, literal
from skewconv.models import LipConvnet
from skewconv.models.parts import CONVOLUTIONS
from skewconv.nn import power_iteration
from skewconv.nn.power_iteration import refreshed
from skewconv.nn.soc.skew_parametrization import proven_norm
from skewconv.train.data import load_dataset

DEPTH = 100
# Layers that do not keep norms by design.
NOT_ORTHOGONAL = ("standard", "aol", "sll", "cpl")
# Stacks of layers between equally many entries, and one input.
STACKS = {
    "SOC2d by its bound": (lambda: snn.SOC2d(12, 12, 3, bias=False, norm="bound"), (4, 12, 6, 6)),
    "SOC2d groups": (lambda: snn.SOC2d(12, 12, 3, groups=2, bias=False), (4, 12, 6, 6)),
    "SOC2d 1 x 1": (lambda: snn.SOC2d(12, 12, 1, bias=False), (4, 12, 6, 6)),
    "SOC2d 5 x 5": (lambda: snn.SOC2d(8, 8, 5, bias=False), (4, 8, 8, 8)),
    "SOC2d to pi": (lambda: snn.SOC2d(12, 12, 3, norm_bound=5.0, bias=False), (4, 12, 6, 6)),
    **{
        f"{kind}{axes}d": (partial(getattr(snn, f"{kind}{axes}d"), channels, channels, 3, bias=False), shape)
        for kind in ("SOC", "SUC", "SOCTranspose")
        for axes, channels, shape in ((1, 12, (4, 12, 16)), (2, 12, (4, 12, 6, 6)), (3, 6, (2, 6, 4, 4, 4)))
    },
    "the paper": (lambda: snn.SOC2d(12, 12, 3, bias=False, series="taylor", train_degree=5), (4, 12, 6, 6)),
    "BCOP2d": (lambda: snn.BCOP2d(12, 12, 3, bias=False), (4, 12, 6, 6)),
    "Cayley2d": (lambda: snn.Cayley2d(12, 12, 3, bias=False), (4, 12, 6, 6)),
}


def kept(layers: nn.Module, x: Tensor) -> tuple[float, float]:
    """The norm of the output over that of the input, and the same of the gradient, backwards."""
    x = x.clone().requires_grad_()
    y = layers(x)
    cotangent = torch.randn_like(y)
    (gradient,) = torch.autograd.grad(y, x, cotangent)
    return float(y.detach().norm() / x.detach().norm()), float(gradient.norm() / cotangent.norm())


QUICK = ("SOC2d", "the paper")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in STACKS]
)
def test_a_hundred_layers_keep_signal_and_gradient_fresh_and_after_steps(name):
    build, shape = STACKS[name]
    torch.manual_seed(0)
    layers = nn.Sequential(*(build() for _ in range(DEPTH)))
    x = torch.randn(shape, dtype=next(layers.parameters()).dtype)
    target, optimizer = torch.randn_like(x), torch.optim.SGD(layers.parameters(), lr=0.1, momentum=0.9)
    layers(x)
    for steps in (0, 2):
        for _ in range(steps):
            optimizer.zero_grad()
            (layers(x) - target).abs().square().mean().backward()
            optimizer.step()
        assert kept(layers, x) == pytest.approx((1.0, 1.0), abs=0.1), f"after {steps} steps"
    # What evaluation computes is near: relative to the norm, whatever the depth.
    with torch.no_grad():
        trained, evaluated = layers(x), layers.eval()(x)
    assert float((trained - evaluated).norm() / evaluated.norm()) < 0.35


# Around a torus p(L^) is applied to few images, and built for many.
@pytest.mark.parametrize(
    ("kind", "size", "padding_mode", "batch"),
    [
        (snn.SOC2d, 2, "zeros", 4),
        (snn.SOC2d, 8, "zeros", 4),
        (snn.SOC2d, 8, "circular", 4),
        (snn.SOC2d, 2, "circular", 40),
        (snn.SOC2d, 16, "circular", 4),
        (snn.Cayley2d, 8, "circular", 4),
        (snn.Cayley2d, 16, "circular", 4),
        (snn.Cayley2d, 2, "circular", 40),
    ],
)
def test_a_hundred_layers_in_bfloat16_are_near_those_in_float32(kind, size, padding_mode, batch):
    torch.manual_seed(0)
    layers = nn.Sequential(*(kind(12, 12, 3, padding_mode=padding_mode) for _ in range(DEPTH)))
    x = torch.randn(batch, 12, size, size, requires_grad=True)
    cotangent = torch.randn(x.shape)
    found = {}
    for mixed in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            y = layers(x).float()
        found[mixed] = y.detach(), *torch.autograd.grad(y, x, cotangent)
    for exact, rounded in zip(found[False], found[True], strict=True):
        assert float((rounded - exact).norm() / exact.norm()) < 0.1
        # Rounded tables of waves must not grow or shrink every layer alike: 0.05% a layer would be 5% here.
        assert float(rounded.norm() / exact.norm()) == pytest.approx(1.0, abs=0.03)


def test_every_orthogonal_convolution_of_the_library_has_a_row():
    kinds = {
        name for name in snn.__all__ if isinstance(kind := getattr(snn, name), type) and issubclass(kind, nn.Module)
    }
    assert {name for name in kinds if re.match("SOC|SUC|BCOP|Cayley", name)} <= set(STACKS)


def test_the_test_would_notice_the_series_that_loses_the_gradient():
    torch.manual_seed(0)
    options = {"train_series": "chebyshev", "train_degree": 3, "norm": "bound", "bias": False}
    layers = nn.Sequential(*(snn.SOC2d(12, 12, 3, **options) for _ in range(DEPTH)))
    assert max(kept(layers, torch.randn(4, 12, 6, 6))) < 0.1


@pytest.mark.parametrize("depth", [5, *(pytest.param(depth, marks=pytest.mark.slow) for depth in (20, 40))])
@pytest.mark.parametrize("conv", [name for name in CONVOLUTIONS if name not in NOT_ORTHOGONAL])
def test_the_orthogonal_networks_keep_the_gradient_of_a_logit_in_training(conv, depth):
    torch.manual_seed(0)
    model = LipConvnet(depth, conv=conv, width=4, in_channels=3, input_size=32).train()
    model(torch.rand(2, 3, 32, 32))
    found = {}
    for training in (True, False):
        x = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(1)).requires_grad_()
        logits = model.train(training)(x)
        (gradient,) = torch.autograd.grad(logits[:, 0].sum(), x)
        found[training] = logits.detach(), gradient.flatten(1).norm(dim=1).mean()
    assert float(found[True][1]) == pytest.approx(float(found[False][1]), rel=0.1)
    distance = (found[True][0] - found[False][0]).norm() / found[False][0].norm()
    assert float(distance) < 0.1


def turn(parameters: list[Tensor], weight, run, x: Tensor, cotangent: Tensor) -> float:
    """The relative change of a normalised filter in one step of SGD at 0.1."""
    before = weight().detach().clone()
    (run(x) * cotangent).sum().real.backward()
    with torch.no_grad():
        for parameter in parameters:
            parameter -= 0.1 * parameter.grad
    return float((weight().detach() - before).norm() / before.norm())


class Literal(nn.Module):
    """M - conv_transpose(M), halved and divided by its norm; any number of axes, groups, real or complex."""

    def __init__(self, layer: snn.SOC2d) -> None:
        super().__init__()
        self.twin, n = layer, layer.channels // layer.groups
        shape = (layer.channels, n, *layer.kernel_size)
        self.filter = nn.Parameter(torch.randn(shape, dtype=layer.filter_dtype) / math.sqrt(n))

    def weight(self) -> Tensor:
        groups, axes = self.twin.groups, tuple(range(3, 3 + self.twin.axes))
        blocks = self.filter.unflatten(0, (groups, -1))
        skew = ((blocks - blocks.transpose(1, 2).flip(axes).conj()) / 2).flatten(0, 1)
        # The norm is a constant of the derivative but for its own direction, which a random gradient hardly has.
        return self.twin.norm_bound * skew / proven_norm(skew.detach(), groups)[0]

    def forward(self, x: Tensor) -> Tensor:
        axes = self.twin.axes
        weight = self.weight()
        convolve = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[axes]
        y = term = x
        for k in range(1, 6):
            term = convolve(term, weight, padding="same", groups=self.twin.groups) / k
            y = y + term
        return y


TURNED = {
    "16": (lambda: snn.SOC2d(16, 16, 3), (6, 6)),
    "64": (lambda: snn.SOC2d(64, 64, 3), (6, 6)),
    "512": (lambda: snn.SOC2d(512, 512, 3), (2, 2)),
    "1 x 1": (lambda: snn.SOC2d(32, 32, 1), (6, 6)),
    "groups": (lambda: snn.SOC2d(64, 64, 3, groups=4), (6, 6)),
    "one axis": (lambda: snn.SOC1d(48, 48, 3), (24,)),
    "three axes": (lambda: snn.SOC3d(16, 16, 3), (4, 4, 4)),
    "complex": (lambda: snn.SUC2d(32, 32, 3), (6, 6)),
}


@pytest.mark.parametrize("name", TURNED)
def test_one_step_of_sgd_turns_a_filter_as_far_as_the_authors_do(name):
    build, size = TURNED[name]
    torch.manual_seed(0)
    layer = build()
    theirs = Literal(layer)
    x = torch.randn(4, layer.channels, *size, dtype=layer.filter_dtype)
    cotangent = 0.01 * torch.randn_like(x)
    ours = turn(layer._filter_parameters(), lambda: layer._filter(step=True), layer, x, cotangent)
    expected = turn([theirs.filter], theirs.weight, theirs, x, cotangent)
    assert expected / 1.5 < ours < expected * 1.5


def test_one_step_of_sgd_turns_the_head_as_far_as_the_authors_do():
    torch.manual_seed(0)
    features = 64
    ours, theirs = snn.OrthogonalLinear(features, 10), LiteralHead(features, 10, 5, 12).train()
    x, cotangent, eye = torch.randn(64, features), 0.01 * torch.randn(64, 10), torch.eye(features)
    expected = turn([theirs.conv.filter], lambda: theirs(eye) - theirs.conv.bias, theirs, x, cotangent)
    found = turn([ours.lower_triangle], lambda: ours.weight, ours, x, cotangent)
    assert expected / 1.5 < found < expected * 1.5


def test_the_initial_scale_is_one_setting_and_slows_a_filter_down_by_its_square():
    found = []
    for scale in (1.0, 4.0):
        torch.manual_seed(0)
        layer = snn.SOC2d(16, 16, 3, init_scale=scale)
        assert float(layer.free.detach().std()) == pytest.approx(scale / 4, rel=0.1)
        x, cotangent = torch.randn(4, 16, 6, 6), 0.01 * torch.randn(4, 16, 6, 6)
        found.append(turn(layer._filter_parameters(), lambda: layer._filter(step=True), layer, x, cotangent))  # noqa: B023
    assert found[0] / found[1] == pytest.approx(16, rel=0.1)


@pytest.mark.parametrize("channels", [4, 64])
def test_a_filter_starts_within_a_percent_of_its_bound(channels):
    torch.manual_seed(0)
    layer = snn.SOC2d(channels, channels, 3)
    assert proven_norm(layer.weight.detach(), 1)[0] <= 1.01 * layer.norm_bound


@pytest.mark.parametrize("optimizer", ["sgd", pytest.param("adam", marks=pytest.mark.slow)])
def test_filters_stay_within_a_percent_of_their_bounds_over_a_run_of_large_steps(optimizer):
    images, labels, _, _ = digits()
    torch.manual_seed(0)
    model = LipConvnet(5, in_channels=1, input_size=8, width=8, mean=0.3, std=0.3)
    layers = [layer for layer in model.modules() if isinstance(layer, snn.SOC2d)]
    largest, first = 0.0, [layer.weight.detach() for layer in layers]
    for step, _ in enumerate(training(model, optimizer, images, labels, 120)):
        if step % 8 == 7:
            largest = max(largest, *(proven_norm(layer.weight.detach(), 1)[0] / layer.norm_bound for layer in layers))
    turned = [float((layer.weight.detach() - w).norm() / w.norm()) for layer, w in zip(layers, first, strict=True)]
    assert max(turned) > 0.3, "the steps were not large"
    assert largest <= 1.012


def test_power_vectors_are_refreshed_every_200_steps(monkeypatch):
    layer, x = snn.SOC2d(4, 4, 3), torch.randn(1, 4, 4, 4)
    found: list[int] = []
    monkeypatch.setattr(power_iteration, "refreshed", lambda *args: found.append(layer._steps + 1) or refreshed(*args))
    for _ in range(401):
        with torch.no_grad():
            layer.centre.mul_(1.0)  # a step of the optimizer that changes nothing
        layer(x)
    assert found == [200, 200, 400, 400]  # once for each split
    # Blocks that know nothing of the filter are converged by it.
    for block in layer._vectors():
        block.copy_(torch.randn_like(block))
    for matrix, block in zip(layer._splits(), layer._vectors(), strict=True):
        norm = float(torch.linalg.matrix_norm(matrix, 2))
        assert float(refreshed(matrix, block).norms) == pytest.approx(norm, rel=1e-4)


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    data = load_dataset("digits")
    splits_of = [(torch.tensor(split.images) / 255, torch.tensor(split.labels)) for split in (data.train, data.test)]
    return *splits_of[0], *splits_of[1]


def training(model: nn.Module, optimizer: str, images: Tensor, labels: Tensor, steps: int) -> Iterator[None]:
    """Steps of SGD at 0.1 with momentum, or of Adam at 1e-3."""
    parameters = list(model.parameters())
    sgd = optimizer == "sgd"
    chosen = torch.optim.SGD(parameters, lr=0.1, momentum=0.9) if sgd else torch.optim.Adam(parameters, 1e-3)
    draws = torch.Generator().manual_seed(0)
    for _ in range(steps):
        batch = torch.randint(len(images), (64,), generator=draws)
        chosen.zero_grad()
        F.cross_entropy(model.train()(images[batch]), labels[batch]).backward()
        chosen.step()
        yield


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("depth", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_networks_learn_at_once_with_what_people_try_first(depth, optimizer):
    images, labels, test_images, test_labels = digits()
    found = []
    for is_literal in (False, True):
        torch.manual_seed(0)
        model = LipConvnet(depth, in_channels=1, input_size=8, width=8, mean=0.3, std=0.3)
        model = literal(model) if is_literal else model
        for _ in training(model, optimizer, images, labels, 60):
            pass
        with torch.no_grad():
            found.append(float((model.eval()(test_images).argmax(1) == test_labels).float().mean()))
    ours, theirs = found
    assert ours > theirs - 0.06
    assert ours > 0.8
