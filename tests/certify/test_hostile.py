"""Attempts to obtain a certificate that does not hold, by models that compute something else than they say: replaced
forwards, settings and tensors edited after the fact, other axes and shapes, devices and layouts."""

import math

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

import skewconv
from skewconv.certify import Certifier, radii
from skewconv.certify.ball_intake import described
from skewconv.errors import NotFiniteError, SkewconvError, UnboundedModuleError
from skewconv.frozen import freeze
from skewconv.models import LipConvnet
from skewconv.nn import (
    AOL2d,
    BCOP2d,
    Cayley2d,
    CPL2d,
    GroupSort,
    Householder,
    MaxMin,
    Normalize,
    SOC2d,
    lipschitz_upper_bound,
)
from skewconv.nn.gains import proven_gain
from skewconv.nn.primitives import Convolution, Primitive, ResidualStep, SkewExponential
from tests.certify.oracles import in_float64

SHAPE, TINY = (1, 8, 8), (1, 2, 2)


def network(**options: object) -> LipConvnet:
    torch.manual_seed(0)
    return LipConvnet(5, in_channels=1, input_size=8, width=2, **options).eval()


def linear(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), *between, nn.Linear(16, 3))


def test_a_layer_that_is_held_twice_runs_twice():
    relu, square = nn.ReLU(), nn.Linear(16, 16)
    for model in (linear(relu, square, relu), linear(square, square), linear(square, nn.Sequential(square))):
        images = torch.rand(4, *SHAPE)
        with torch.no_grad():
            expected = in_float64(model)(images.double())
        torch.testing.assert_close(Certifier(model, SHAPE).logits(images), expected, rtol=0, atol=1e-12)


class AlwaysTraining(nn.Sequential):
    """As for dropout at test time."""

    def train(self, mode=True):
        return super().train(True)


class TenTimes(MaxMin):
    """Inherits a bound that is not its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 10 * x


def stays_in_training(layer: nn.Module) -> nn.Module:
    return nn.Sequential(AlwaysTraining(layer), nn.Flatten(), nn.Linear(64, 3)).eval()


def replaced() -> nn.Module:
    model = network()
    model.body[1].forward = lambda x: 10 * x
    return model


def hooked() -> nn.Module:
    model = network()
    model.body[1].register_forward_hook(lambda module, given, result: 10 * result)
    return model


# What may compute something else than its layers say: a model, the reason, and who refuses it beside the certifier.
TAMPERED = {
    "dropout in training": (lambda: stays_in_training(nn.Dropout(0.01)), "stays in training mode", freeze),
    "CPL in training": (lambda: stays_in_training(CPL2d(1, 1, 3)), "stays in training mode", freeze),
    "forward on the instance": (replaced, "forward was replaced", freeze),
    "hook": (hooked, "hooks", freeze),
    "subclass": (lambda: linear(TenTimes()), "something else than MaxMin", lipschitz_upper_bound),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_what_may_compute_something_else_is_refused(name):
    build, reason, other = TAMPERED[name]
    for ask in (Certifier, other):
        with pytest.raises(UnboundedModuleError, match=reason):
            ask(build(), SHAPE)


def test_hooks_on_all_modules_are_refused():
    handle = register_module_forward_hook(lambda module, given, result: 10 * result)
    try:
        for ask in (Certifier, lipschitz_upper_bound):
            with pytest.raises(UnboundedModuleError, match="hooks"):
                ask(linear(nn.ReLU()), SHAPE)
    finally:
        handle.remove()


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_a_model_that_cannot_be_copied_is_refused_in_words():
    with pytest.raises(UnboundedModuleError, match="cannot be copied in float64"):
        Certifier(nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(64, 3))), SHAPE)


def test_layers_in_place_leave_the_images_alone_and_their_norms_right():
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(64, 3))
    images, labels = torch.randn(4, 64, dtype=torch.float64), torch.zeros(4, dtype=torch.int64)
    before = images.clone()
    found = radii(model, images, labels, input_range=None)
    assert torch.equal(images, before)  # moved
    model[0].inplace = False
    assert torch.equal(found, radii(model, images, labels, input_range=None))  # repeated


def test_autocast_and_the_default_dtype_do_not_reach_a_certificate():
    model, images, labels = network(), torch.rand(4, *SHAPE), torch.arange(4)
    expected = Certifier(model, SHAPE)(images, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = Certifier(model, SHAPE)(images, labels)
    assert torch.equal(found.radii, expected.radii)  # repeated, and below
    torch.set_default_dtype(torch.float16)
    try:
        assert torch.equal(Certifier(model, SHAPE)(images, labels).radii, expected.radii)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("std", [0.0, -0.01, float("nan"), float("inf")])
def test_a_tampered_deviation_never_makes_a_radius(std: float):
    model = network()
    model.body[0].std.fill_(std)
    with pytest.raises(NotFiniteError):
        radii(model, torch.rand(2, *SHAPE), torch.tensor([0, 1]))


@pytest.mark.parametrize("factor", [-1.0, float("nan"), float("inf")])
def test_a_scale_that_no_residual_step_has_is_refused_by_name(factor):
    frozen = skewconv.freeze(network(conv="sll"), SHAPE)
    steps = [layer for layer in frozen.modules() if isinstance(layer, ResidualStep)]
    steps[0].scale[0] = factor * steps[0].scale[0].abs().clamp_min(1e-3)
    with pytest.raises(NotFiniteError, match="scale of a ResidualStep"):
        Certifier(frozen, SHAPE)


@pytest.mark.parametrize(
    "options",
    [{}, {"padding_mode": "circular"}, {"conv": "aol"}, {"conv": "bcop"}],
    ids=["dense", "spectral", "aol", "bcop"],
)
@pytest.mark.parametrize("exponent", [-560, -1000, 500])
def test_the_gain_of_frozen_weights_of_any_size_is_proven_and_never_zero(options, exponent):
    frozen = skewconv.freeze(network(**options).double(), SHAPE)
    layer = next(layer for layer in frozen.modules() if isinstance(layer, Primitive))
    low, high = proven_gain(layer)
    for weight in (layer.weight, getattr(layer, "real_weight", layer.weight[:0])):
        weight.mul_(2.0 ** (exponent // 2)).mul_(2.0 ** (exponent - exponent // 2))
    smallest, largest = proven_gain(layer)
    assert largest == pytest.approx(math.ldexp(high, exponent), rel=1e-9)
    assert smallest <= math.ldexp(low, exponent) * (1 + 1e-9)
    assert Certifier(frozen, SHAPE).lipschitz >= largest > 0


@pytest.mark.parametrize(
    "model",
    [
        network(conv="bcop"),
        network(conv="sll"),
        nn.Sequential(SOC2d(2, 2, 3), nn.Flatten(), nn.Linear(512, 3)).eval(),
    ],
    ids=["convolution", "residual", "series"],
)
def test_a_frozen_layer_that_states_another_image_size_is_refused(model):
    """The gain of a filter may be proven for the size of its images alone."""
    shape = (2, 16, 16) if isinstance(model, nn.Sequential) else SHAPE
    frozen = skewconv.freeze(model, shape)
    layer = next(layer for layer in frozen.modules() if isinstance(layer, (Convolution, ResidualStep, SkewExponential)))
    channels, side, _ = layer.output_shape
    layer.output_shape = (channels, side // 2, side // 2)
    with pytest.raises(UnboundedModuleError, match="it states"):
        Certifier(frozen, shape)


def with_bias(layer: nn.Module) -> nn.Module:
    layer.bias = nn.Parameter(torch.zeros(16))
    return layer.eval()


def wide_mean() -> Normalize:
    layer = Normalize(0.0, 1.0)
    layer.mean, layer.std = torch.zeros(1, 16), torch.ones(1, 16)
    return layer


def wide_angles() -> Householder:
    layer = Householder(2)
    layer.theta = nn.Parameter(torch.rand(1, 16))
    return layer


WIDE = {
    "normalize": (wide_mean, TINY),
    "householder": (wide_angles, (2, 2, 2)),
    **{kind.__name__: (lambda kind=kind: with_bias(kind(1, 1, 1)), TINY) for kind in (AOL2d, BCOP2d, Cayley2d, SOC2d)},
}


@pytest.mark.parametrize("name", WIDE)
def test_a_tensor_that_repeats_what_a_layer_makes_is_refused(name):
    build, shape = WIDE[name]
    layer = build()
    features = layer(torch.zeros(1, *shape)).numel()
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(features, 2)).eval()
    for ask in (Certifier, lipschitz_upper_bound, lambda model, shape: list(described(model.double(), shape))):
        with pytest.raises(SkewconvError):
            ask(model, shape)


@pytest.mark.parametrize("layer", [GroupSort(None, dim=0), GroupSort(2, dim=0), MaxMin(dim=0), Householder(2, dim=0)])
def test_an_axis_that_is_the_batch_is_refused_however_small_the_logits(layer):
    model = nn.Sequential(layer, nn.Linear(6, 3))
    with torch.no_grad():
        for parameter in model[1].parameters():
            parameter.mul_(1e-8)
    with pytest.raises(UnboundedModuleError, match="batch"):
        Certifier(model, (6,))
