"""Radii: tight where they can be, zero where they must be, better by pairs, and of the model as it is."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from skewconv.certify import Certifier, certified_accuracy, certify_dataset, curve, mean_radius, predict, radii
from skewconv.errors import ArgumentError, DtypeError, ShapeError
from skewconv.models import LipConvnet
from skewconv.models.parts import CONVOLUTIONS
from skewconv.nn import MaxMin, Normalize, NormalizedLinear, OrthogonalLinear, SOC2d
from tests.certify.oracles import assert_sound_under_attack, boundary_distances, in_float64


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
def test_radius_of_a_linear_orthogonal_network_is_the_distance_to_the_boundary(padding_mode):
    # Nothing is cut off, so that every difference of two logits is stretched by exactly the Lipschitz constant.
    options = {"padding_mode": padding_mode, "eval_tol": 1e-12}
    model = nn.Sequential(
        Normalize(0.4, 0.25), SOC2d(2, 8, 3, stride=2, **options), SOC2d(8, 8, 3, **options), nn.Flatten(),
        OrthogonalLinear(32, 32),
    )  # fmt: skip
    images = torch.rand(40, 2, 4, 4)
    labels = in_float64(model)(images.double()).argmax(1)
    found = radii(model, images, labels)
    true = boundary_distances(model, images, labels)
    assert float(true.min()) > 0
    assert bool((found <= true).all())
    assert float((found / true - 1).abs().max()) < 1e-6


def test_nan_and_infinite_logits_certify_nothing():
    model = LipConvnet(5, in_channels=1, input_size=8, width=4)
    images = torch.rand(3, 1, 8, 8)
    images[0, 0, 0, 0], images[1, 0, 0, 0] = math.nan, math.inf
    certifier = Certifier(model, (1, 8, 8), input_range=None)
    labels = in_float64(model)(images.double()).argmax(1)
    found = certifier(images, labels).radii
    assert found[:2].tolist() == [0.0, 0.0]
    assert found[2] > 0
    with torch.no_grad():
        model.head.bias[3] = math.nan
    for label in range(10):
        assert float(radii(model, images, torch.full((3,), label), input_range=None).max()) == 0.0


@pytest.mark.parametrize("images", [255 * torch.rand(3, 1, 8, 8), torch.rand(3, 1, 8, 8) - 0.5])
def test_images_in_other_units_are_refused_unless_they_are_meant(images: Tensor) -> None:
    model, labels = LipConvnet(5, in_channels=1, input_size=8, width=4), torch.zeros(3, dtype=torch.int64)
    for certify in (
        lambda **options: radii(model, images, labels, **options),
        lambda **options: certify_dataset(model, images, labels, **options),
        lambda **options: predict(Certifier(model, (1, 8, 8), **options), images),
    ):
        with pytest.raises(ArgumentError, match=r"in \[0, 1\], got values from .* divide pixels .* input_range=None"):
            certify()
        certify(input_range=None)
    assert radii(model, torch.full((3, 1, 8, 8), math.nan), labels).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("head", [NormalizedLinear, nn.Linear])
def test_pairs_of_rows_give_larger_radii_than_the_whole_matrix(head):
    model = nn.Sequential(Normalize(0.5, 0.5), SOC2d(1, 4, 3, stride=2), MaxMin(), nn.Flatten(), head(16, 5))
    certifier = Certifier(model, (1, 4, 4))
    whole = certifier.lipschitz * math.sqrt(2)
    others = ~torch.eye(5, dtype=torch.bool)
    assert bool((certifier.pair_bounds[others] < whole * 0.99).all())
    assert_sound_under_attack(model, torch.rand(8, 1, 4, 4))


@pytest.mark.parametrize(
    ("conv", "activation"),
    [
        *((name, "maxmin") for name in CONVOLUTIONS if name != "standard"),
        *(("soc", name) for name in ("groupsort", "householder2")),
    ],
)
def test_every_kind_of_lipconvnet_is_evaluated_as_it_is_and_holds_under_attack(conv, activation):
    model = LipConvnet(5, in_channels=1, input_size=8, width=4, conv=conv, activation=activation)
    images = torch.rand(4, 1, 8, 8)
    certifier = Certifier(model, (1, 8, 8))
    with torch.no_grad():
        difference = certifier.logits(images) - in_float64(model)(images.double())
    # The matrices of Cayley are scaled for the rounding of the transforms around them.
    assert float(difference.abs().max()) < (1e-12 if conv == "cayley" else 1e-13)
    assert_sound_under_attack(model, images)


def test_the_model_is_left_as_it_is():
    model = LipConvnet(5, in_channels=1, input_size=8, width=4).train()
    before = copy.deepcopy(model.state_dict())
    radii(model, torch.rand(2, 1, 8, 8), torch.tensor([0, 1]))
    assert model.training
    # moved
    assert all(torch.equal(v, before[k]) and v.dtype == before[k].dtype for k, v in model.state_dict().items())


def test_images_and_labels_that_do_not_fit_are_refused():
    model = LipConvnet(5, in_channels=1, input_size=8, width=4)
    certifier = Certifier(model, (1, 8, 8))
    with pytest.raises(DtypeError, match="255"):
        certifier(torch.zeros(1, 1, 8, 8, dtype=torch.uint8), torch.tensor([0]))
    with pytest.raises(ShapeError):
        certifier(torch.rand(1, 1, 4, 4), torch.tensor([0]))
    with pytest.raises(ShapeError):
        certifier(torch.rand(2, 1, 8, 8), torch.tensor([0]))
    with pytest.raises(ArgumentError, match="0 to 9"):
        certifier(torch.rand(1, 1, 8, 8), torch.tensor([10]))


def test_certified_accuracy_counts_radii_from_the_threshold_on():
    found = torch.tensor([0.0, 0.0, 0.5, 1.0])
    assert certified_accuracy(found, [0.0, 0.5, 0.51, 2.0]) == [0.5, 0.5, 0.25, 0.0]
    assert mean_radius(found) == 0.375
    points = curve(found, points=5)
    assert points[0] == (0.0, 0.5)
    assert points[-1] == (1.0, 0.25)
    with pytest.raises(ArgumentError):
        certified_accuracy(found, [-1.0])
