"""The second path: it takes whatever can be certified, agrees with the first path, and shares none of its numerics."""

import math

import pytest
import torch
from torch import nn

from skewconv.certify import certify_dataset, check_certificates, radii
from skewconv.errors import UnboundedModuleError
from skewconv.frozen import freeze
from skewconv.models import LipConvnet, resnet18
from skewconv.nn import BCOP2d, GroupSort, SOCTranspose1d, SOCTranspose2d
from tests.certify.oracles import in_float64
from tests.oracles.second_path import spectral_norm, walk
from tests.oracles.second_path.derive import derive

SMALL = {"in_channels": 1, "input_size": 8, "width": 4}


def ended(*layers: nn.Module, features: int) -> nn.Sequential:
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, 3))


def models() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    return {
        "resnet": (resnet18(num_classes=4, conv="soc", width=2, in_channels=1), (1, 8, 8)),
        "resnet, standard": (resnet18(num_classes=4, width=2, in_channels=1), (1, 8, 8)),
        "convolution": (ended(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), features=64), (2, 4, 4)),
        "stride": (ended(nn.Conv2d(2, 4, (2, 3), stride=2, bias=False), features=12), (2, 6, 4)),
        "circular, dilation": (
            ended(nn.Conv2d(2, 4, 3, padding=2, dilation=2, groups=2, padding_mode="circular"), features=100),
            (2, 5, 5),
        ),
        "one axis": (ended(nn.Conv1d(2, 3, 3), nn.Unflatten(1, (1, 3)), nn.Identity(), features=12), (2, 6)),
        "three axes": (ended(nn.Conv3d(1, 2, 2), nn.MaxPool3d(2, 1), features=16), (1, 4, 4, 4)),
        "batch norm, pools": (
            ended(
                nn.Conv2d(1, 2, 3, padding="same"),
                nn.BatchNorm2d(2),
                nn.MaxPool2d(3, 2, 1),
                nn.AvgPool2d(2, 1, ceil_mode=True),
                nn.AdaptiveAvgPool2d((2, 1)),
                features=4,
            ),
            (1, 8, 8),
        ),
        "adjoint": (ended(SOCTranspose2d(4, 2, 3, stride=2), nn.ReLU6(), features=32), (4, 2, 2)),
        "adjoint, groups": (ended(SOCTranspose1d(4, 6, 3, groups=2), nn.Hardtanh(), features=30), (4, 5)),
        "rearranged": (
            ended(
                nn.PixelUnshuffle(2),
                nn.ChannelShuffle(2),
                nn.ZeroPad2d(1),
                nn.Dropout(),
                nn.PixelShuffle(2),
                GroupSort(None),
                features=100,
            ),
            (1, 6, 6),
        ),
        "norm tracked": (LipConvnet(5, **SMALL, conv_options={"norm": "tracked"}), (1, 8, 8)),
        "norm tracked, adjoint": (
            ended(SOCTranspose2d(4, 2, 3, stride=2, padding_mode="circular", norm="tracked"), features=32),
            (4, 2, 2),
        ),
        "frozen": (freeze(LipConvnet(5, **SMALL).eval(), (1, 8, 8)), (1, 8, 8)),
        "frozen, circular": (freeze(LipConvnet(5, **SMALL, padding_mode="circular").eval(), (1, 8, 8)), (1, 8, 8)),
        "odd sides": (LipConvnet(5, 3, in_channels=1, input_size=(9, 14), width=2), (1, 9, 14)),
        "aol": (LipConvnet(5, **SMALL, conv="aol"), (1, 8, 8)),
        "sll, frozen": (freeze(LipConvnet(5, **SMALL, conv="sll").eval(), (1, 8, 8)), (1, 8, 8)),
        "frozen, bcop": (freeze(ended(BCOP2d(1, 4, 3), features=64).eval(), (1, 4, 4)), (1, 4, 4)),
    }


@pytest.mark.parametrize("name", models())
def test_the_second_path_takes_what_can_be_certified_and_agrees(name, tmp_path):
    torch.manual_seed(3)
    model, shape = models()[name]
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
    model.eval()
    images = torch.rand(5, *shape)
    with torch.no_grad():
        labels = in_float64(model)(images.double()).argmax(1)
    certify_dataset(model, images, labels).write(tmp_path)
    report = check_certificates(tmp_path, model, images, labels)
    assert report.problems == ()
    assert 0 < report.largest_ratio < 1 + 1e-6


@pytest.mark.parametrize("exponent", [-560, 500])
def test_norms_are_computed_scaled(exponent):
    matrix = torch.randn(5, 7, dtype=torch.float64)
    scaled = spectral_norm((matrix * 2.0**exponent).numpy())
    assert scaled == pytest.approx(float(torch.linalg.matrix_norm(matrix, 2)) * 2.0**exponent, rel=1e-8)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4, bias=False)).double().requires_grad_(False)
    images = torch.rand(6, 1, 4, 4, dtype=torch.float64)
    labels = model(images).argmax(1)
    wanted = derive(model, images, labels, 6).radii
    model[1].weight.mul_(2.0**exponent)
    found = derive(model, images, labels, 6)
    torch.testing.assert_close(found.radii, wanted, rtol=1e-12, atol=0)
    assert 0 < found.lipschitz < math.inf


def test_bounds_of_many_small_layers_do_not_vanish():
    layers = [nn.Linear(4, 4, bias=False).double() for _ in range(3)]
    model = nn.Sequential(*layers, nn.Linear(4, 2).double()).requires_grad_(False)
    for layer in layers:
        layer.weight.mul_(2.0**-400)
    model[3].weight.mul_(2.0**1000)
    images = torch.rand(4, 4, dtype=torch.float64)
    with torch.no_grad():
        labels = model(images).argmax(1)
    found = derive(model, images, labels, 4).radii
    assert bool(torch.isfinite(found).all())


def test_a_model_of_weights_that_underflow_is_refused_by_the_judge(tmp_path):
    """An infinite radius in the table is not believed."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4)).double().requires_grad_(False)
    model[1].weight.mul_(2.0**-560)
    images = torch.rand(3, 1, 4, 4, dtype=torch.float64)
    labels = model(images).argmax(1)
    found = certify_dataset(model, images, labels)
    found.radius.fill_(math.inf)
    found.write(tmp_path)
    problems = check_certificates(tmp_path, model, images, labels).problems
    assert sum("radius inf" in problem for problem in problems) == 3


def test_the_second_path_finds_the_radii_of_the_first_for_plain_convolutions():
    torch.manual_seed(0)
    model = ended(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), features=64)
    images = torch.rand(4, 2, 4, 4)
    labels = in_float64(model)(images.double()).argmax(1)
    second, first = derive(model, images, labels, 4).radii, radii(model, images, labels)
    # The torus of this image is smaller than the whole plane, on which the first path bounds the filter.
    assert bool((first <= second * (1 + 1e-9)).all())
    assert bool((first >= 0.8 * second).all())


def test_what_is_not_known_is_refused_by_name():
    for layer, reason in (
        (nn.Sigmoid(), "does not know"),
        (nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect"), "pads by"),
        (nn.MaxPool2d(2, return_indices=True), "indices"),
        (nn.BatchNorm2d(1, track_running_stats=False), "statistics"),
    ):
        with pytest.raises(UnboundedModuleError, match=reason):
            walk(nn.Sequential(layer).double().eval(), (1, 4, 4))
