"""The second radius, for the network in float32: a stated slack below the first, and nothing breaks it."""

import pytest
import torch
from torch import nn

from skewconv.certify import Certifier, RoundingSearch, attack_certificates, certifier, certify_dataset, predict
from skewconv.certify.certifier import multiplies_in_float32
from skewconv.certify.float32 import MULTIPLE, proven_error
from skewconv.models import LipConvnet
from skewconv.nn import MaxMin, Normalize, SOC2d


def linear_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Normalize(0.5, 0.25), nn.Flatten(), nn.Linear(196, 10))


def test_bounds_that_float32_rounds_leave_no_proven_slack():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Hardtanh(1.1e-5, 1.0), nn.Linear(4, 3)).requires_grad_(False)
    images = torch.rand(5, 1, 2, 2)
    found = certify_dataset(model, images, model(images).argmax(1))
    assert found.facts["float32_slack"]["kind"] == "measured"


def test_a_deep_network_has_a_measured_slack_that_is_a_multiple_of_what_was_seen():
    torch.manual_seed(0)
    model = LipConvnet(5, in_channels=1, input_size=8, width=4).eval()
    images = torch.rand(30, 1, 8, 8)
    labels = model(images).argmax(1)
    found = certify_dataset(model, images, labels, batch_size=16)
    slack = found.facts["float32_slack"]
    assert slack["kind"] == "measured"
    assert slack["clean_images"] == 30
    assert slack["attacked_images"] == int((found.radius > 0).sum()) > 0
    assert slack["logits"] == MULTIPLE * slack["largest_difference"]
    with torch.no_grad():
        exact = Certifier(model, (1, 8, 8)).logits(images)
        # Another number of threads may round otherwise, which the multiple is there for.
        assert float((model(images).double() - exact).abs().max()) <= slack["logits"]
    assert (found.radius_float32 <= found.radius).all()
    assert (found.radius_float32 >= found.radius - 1e-4).all()


def test_what_float32_tells_apart_by_luck_only_has_no_radius():
    model = linear_model()
    with torch.no_grad():
        model[-1].weight[1] = model[-1].weight[0]
        model[-1].bias[1] = model[-1].bias[0] - 1e-9
    images = torch.rand(20, 1, 14, 14)
    labels = torch.zeros(20, dtype=torch.int64)
    found = certify_dataset(model, images, labels)
    assert (found.radius_float32 == 0).all()


@pytest.mark.parametrize(
    ("model", "known"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), True),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 4), MaxMin(), nn.Linear(4, 2)), True),
        (nn.Sequential(SOC2d(1, 1, 3), nn.Flatten(), nn.Linear(4, 2)), False),
        (nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), nn.Flatten(), nn.Linear(4, 2)), False),
    ],
)
def test_a_bound_is_given_only_where_every_layer_computes_with_what_it_stores(model, known):
    certifier = Certifier(model, (1, 2, 2))
    error = proven_error(certifier.links, (1, 2, 2), 2.0)
    assert (error is not None) == known
    if error is not None:
        x = torch.rand(500, 1, 2, 2)
        with torch.no_grad():
            differences = (model(x).double() - certifier.logits(x)).norm(dim=1)
        assert float(differences.max()) <= error.at(float(x.flatten(1).norm(dim=1).max()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_is_proven_of_float32_is_not_said_of_shorter_numbers(dtype):
    model, images = linear_model().to(dtype), torch.rand(60, 1, 14, 14)
    labels = Certifier(model, (1, 14, 14)).logits(images).argmax(1)
    found = certify_dataset(model, images, labels)
    slack = found.facts["float32_slack"]
    assert slack["kind"] == "measured"
    assert slack["logits"] > 1e-4
    search = RoundingSearch(rivals=1, neighbours=20)
    report = attack_certificates(model, images, labels, found.radius_float32, search, fraction=1.0)
    assert report.violations == report.flips == ()


def test_products_of_another_precision_are_noticed_before_anything_is_proven(monkeypatch):
    assert multiplies_in_float32("cpu")
    plain = torch.Tensor.__matmul__

    def coarse(a, b):
        return plain(a.bfloat16(), b.bfloat16()).float()

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "__matmul__", coarse)
        assert not multiplies_in_float32("cpu")
    monkeypatch.setattr(certifier, "by_onednn", lambda *factors: True)
    monkeypatch.setattr(certifier, "onednn_product", coarse)
    assert not multiplies_in_float32("cpu")


@pytest.mark.parametrize("layers", [1, 2])
def test_logits_that_overflow_in_float32_have_no_radius_there(layers):
    """Of one layer a bound would be proven, if it could not overflow; of two the difference is not a number."""
    torch.manual_seed(0)
    hidden = [nn.Linear(196, 8), nn.Identity()] if layers == 2 else []
    model = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(8 if hidden else 196, 3)).requires_grad_(False)
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.mul_(1e20).mul_(4e19 if layers == 1 else 1.0)
    images = torch.rand(30, 1, 14, 14)
    labels = Certifier(model, (1, 14, 14)).logits(images).argmax(1)
    found = certify_dataset(model, images, labels)
    assert not bool(torch.isfinite(model(images)).all())
    assert bool((found.radius > 0).any())
    assert bool((found.radius_float32 == 0).all())


class LowersItsPrecision(nn.Module):
    """Computes in bfloat16 where nobody looks."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.layers(x)


@pytest.mark.parametrize("inside", [True, False])
def test_what_is_proven_of_float32_is_not_said_of_a_network_under_autocast(inside):
    torch.manual_seed(0)
    model = LowersItsPrecision().eval()
    images = torch.rand(512, 16)
    with torch.no_grad():
        model.layers[2].bias -= model.layers(images).mean(0)
    judged = model if inside else model.layers
    assert predict(model.layers, images, float32=True).slack.kind == "proven"
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not inside):
        found = predict(judged, images, float32=True)
        with torch.no_grad():
            given = judged(images).argmax(1)
    assert found.slack.kind == "measured"
    assert not bool(((given != found.classes) & (found.radii_float32 > 0)).any())


def test_sums_longer_than_the_room_of_the_bound_are_not_called_proven():
    for inputs, known in ((99_000, True), (101_000, False)):
        layer = nn.Linear(inputs, 2, dtype=torch.float64)
        assert (proven_error([("0", layer)], (inputs,), 10.0) is not None) is known
