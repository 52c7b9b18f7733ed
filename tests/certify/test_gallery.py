"""Attempts to break certificates: each a way in which an estimate would pass for a bound, or something stale remain."""

import pytest
import torch
from torch import nn

from skewconv.certify import radii
from skewconv.models import LipConvnet
from skewconv.nn import AOL2d, CPL2d, Normalize, OrthogonalLinear, SLL2d, SOC2d
from skewconv.ops import dense_jacobian
from tests.certify.oracles import assert_sound_if_affine, assert_sound_under_attack, in_float64

SHAPE = (2, 4, 4)


def affine(layer: nn.Module, features: int = 32) -> nn.Sequential:
    return nn.Sequential(Normalize(0.5, 0.3), layer, nn.Flatten(), OrthogonalLinear(features, 4))


def net(conv: str = "soc") -> LipConvnet:
    return LipConvnet(5, in_channels=1, input_size=8, width=4, conv=conv)


each_conv = pytest.mark.parametrize("conv", ["soc", "aol", "sll", "cpl"])


def layers_of(model: nn.Module) -> list[nn.Module]:
    return [layer for layer in model.modules() if isinstance(layer, (SOC2d, AOL2d, SLL2d, CPL2d))]


def raw_filter(model: nn.Module) -> nn.Parameter:
    """The parameter of the first filter with more than one tap."""
    found = ((layer, name) for layer in layers_of(model) for name in ("free", "raw_weight", "weight"))
    return next(layer._parameters[name] for layer, name in found if layer._parameters.get(name) is not None)


@pytest.mark.parametrize("conv", ["soc", "cpl"])
def test_power_vectors_that_have_not_converged_do_not_matter(conv):
    model = net(conv)
    images = torch.rand(4, 1, 8, 8)
    expected = assert_sound_under_attack(model, images)
    labels = in_float64(model)(images.double()).argmax(1)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.rpartition(".")[2] in ("u0", "u1", "power_vector"):
                # Orthogonal to the leading vectors, or nothing at all: the estimates are then near zero.
                buffer.copy_(torch.zeros_like(buffer) if name.endswith("u0") else 1e-6 * torch.randn_like(buffer))
    # repeated: the vectors have no part in it
    assert torch.equal(radii(model, images, labels), expected)


@pytest.mark.parametrize("factor", [1e6, 1e-6])
@each_conv
def test_weights_of_any_size_are_normalised(conv, factor):
    model = net(conv)
    with torch.no_grad():
        for layer in layers_of(model):
            for parameter in layer.parameters():
                parameter *= factor
            # Biases of 1e6 leave no margin to certify; the filters are what is tested.
            if layer.bias is not None:
                layer.bias.zero_()
    assert_sound_under_attack(model, torch.rand(3, 1, 8, 8))


@each_conv
@pytest.mark.parametrize("through", ["data", "view"])
def test_weights_edited_in_place_after_a_forward_are_certified_as_they_are_now(conv, through):
    model = net(conv).eval()
    images = torch.rand(4, 1, 8, 8)
    with torch.no_grad():
        model(images)  # fills every cache
    before = radii(model, images, in_float64(model)(images.double()).argmax(1))
    weight = raw_filter(model)
    if through == "data":
        weight.data[0] *= -5
    else:
        weight.detach().view(-1)[:64] += 3.0
    fresh = net(conv)
    fresh.load_state_dict(model.state_dict())
    now = in_float64(fresh)(images.double()).argmax(1)
    assert torch.equal(radii(model, images, now), radii(fresh, images, now))  # repeated
    assert not torch.equal(radii(model, images, now), before)
    assert_sound_under_attack(model, images)


def test_eval_right_after_loading_certifies_the_loaded_weights():
    source, target = net(), net().train()
    images = torch.rand(4, 1, 8, 8)
    target(images)
    target.eval()(images)
    target.load_state_dict(source.state_dict())
    labels = in_float64(source)(images.double()).argmax(1)
    assert torch.equal(radii(target, images, labels), radii(source, images, labels))  # repeated
    # Vectors that belong to other weights, as in a checkpoint put together by hand.
    foreign = {k: v for k, v in source.state_dict().items() if ".u" not in k}
    foreign |= {k: v for k, v in net().state_dict().items() if ".u" in k}
    target.load_state_dict(foreign)
    assert torch.equal(radii(target, images, labels), radii(source, images, labels))  # repeated


@pytest.mark.parametrize("degree", [0, 2, 3])
@pytest.mark.parametrize("series", ["taylor", "chebyshev"])
def test_a_degree_fixed_too_low_costs_radius_but_not_soundness(series, degree):
    certifier = assert_sound_if_affine(affine(SOC2d(2, 2, 3, series=series, eval_degree=degree)), SHAPE)
    assert certifier.lipschitz < 5 / 0.3


@each_conv
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_are_certified_as_stored(conv, dtype):
    assert_sound_under_attack(net(conv).to(dtype), torch.rand(3, 1, 8, 8))
    # The layer in its own precision is never expansive either: the rounding of its filter is in the norm bound.
    layer = SOC2d(2, 2, 3, bias=False, dtype=dtype).eval()
    jacobian = dense_jacobian(layer.weight.detach().double(), 4)
    assert float(torch.linalg.matrix_norm(jacobian, 2)) <= layer.proven_norm_bound()


def test_groups_count_with_the_largest():
    layer = SOC2d(4, 4, 3, groups=2)
    with torch.no_grad():
        layer.free[:, 2:] *= 100.0  # the second group outweighs the first
        layer.centre[1] *= 100.0
    assert_sound_if_affine(nn.Sequential(layer, nn.Flatten(), OrthogonalLinear(36, 4)), (4, 3, 3))


@pytest.mark.parametrize("side", [1, 2, 3])
@pytest.mark.parametrize("kernel", [1, 3])
def test_circular_padding_on_tiny_images_wraps_into_the_bound(side, kernel):
    layer = SOC2d(3, 3, kernel, padding_mode="circular")
    model = nn.Sequential(layer, nn.Flatten(), OrthogonalLinear(3 * side**2, 3))
    assert_sound_if_affine(model, (3, side, side))
