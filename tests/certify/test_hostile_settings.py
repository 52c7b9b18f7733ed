"""Settings edited after the fact, devices and layouts that nobody expects: a certificate holds, or is refused."""

import copy
import math

import pytest
import torch
from torch import nn

import skewconv
from skewconv.certify import Certifier, certify_dataset, predict, radii
from skewconv.errors import NotFiniteError, UnboundedModuleError
from skewconv.models import LipConvnet
from skewconv.nn import SOC2d, lipschitz_upper_bound
from skewconv.nn.gains import proven_gain
from skewconv.nn.primitives import Convolution, Primitive, ResidualStep, SkewExponential

SHAPE = (1, 8, 8)


def network(**options: object) -> LipConvnet:
    torch.manual_seed(0)
    return LipConvnet(5, in_channels=1, input_size=8, width=2, **options).eval()


def test_an_affine_flag_taken_back_does_not_hide_the_weights_that_a_batch_norm_still_uses():
    layer = nn.BatchNorm2d(2).eval()
    layer.weight.data.fill_(100.0)
    bound = lipschitz_upper_bound(layer, (2, 4, 4))
    layer.affine = False
    assert lipschitz_upper_bound(layer, (2, 4, 4)) == bound > 99
    assert nn.BatchNorm2d(2, affine=False).weight is None


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
    [network(conv="bcop"), network(conv="sll"), nn.Sequential(SOC2d(2, 2, 3), nn.Flatten(), nn.Linear(512, 3)).eval()],
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


@pytest.mark.parametrize("conv", ["soc", "aol", "cayley"])
def test_another_default_device_does_not_reach_a_certificate(conv):
    model, images, labels = network(conv=conv), torch.rand(3, *SHAPE), torch.tensor([0, 1, 2])
    expected = radii(model, images, labels)
    with torch.device("meta"):
        found = radii(model, images, labels)
    assert torch.equal(found, expected)  # repeated


def test_images_of_any_layout_have_the_radii_of_their_values():
    model, images = network(), torch.rand(4, *SHAPE)
    labels = predict(model, images).classes
    expected = radii(model, images, labels)
    strided = images.transpose(2, 3).contiguous().transpose(2, 3)
    one = images[:1].expand(4, *SHAPE)
    torch.testing.assert_close(radii(model, strided, labels), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(radii(model, one, labels[:1].expand(4)), expected[:1].expand(4), rtol=1e-12, atol=0)
    assert radii(model, images[:0], labels[:0]).shape == (0,)
    assert len(predict(model, images[:0])) == 0
    with torch.inference_mode():
        inside = radii(model, images.clone(), labels)
    assert torch.equal(inside, expected)  # repeated


def test_one_class_cannot_be_left():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 1))
    found = certify_dataset(model, torch.rand(3, *SHAPE), torch.zeros(3, dtype=torch.int64))
    assert found.radius.tolist() == [torch.inf] * 3


def test_a_model_edited_after_certification_is_not_the_one_certified(tmp_path):
    model, images = network(), torch.rand(3, *SHAPE)
    certifier = Certifier(model, SHAPE)
    before = certifier.logits(images)
    labels = before.argmax(1)
    found = certifier(images, labels).radii
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-3)
    assert torch.equal(certifier(images, labels).radii, found)  # repeated
    certificates = certify_dataset(copy.deepcopy(model), images, labels)
    assert not torch.equal(certificates.radius, found)
