"""The radii of a file hold against attacks in onnxruntime's own arithmetic, and are zero where nothing is proven."""

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from benchmarks.file_attack import attack_file
from skewconv.certify import PGD
from skewconv.errors import ArgumentError
from skewconv.export import TARGETS, export, onnx, open_file
from skewconv.models import LipConvnet

targets = pytest.mark.parametrize("kind", list(TARGETS))


def test_no_point_inside_a_radius_has_another_class_in_onnxruntime_and_within_three_radii_some_have(tmp_path):
    torch.manual_seed(0)
    pixels = torch.tensor(load_digits().images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(load_digits().target)
    model = LipConvnet(5, in_channels=1, input_size=8, width=4, mean=0.3, std=0.4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for batch in torch.randint(1500, (40, 64)):
        loss = nn.functional.cross_entropy(4 * model(pixels[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    test = pixels[1500:1580]
    made = onnx(model.eval(), tmp_path / "digits.onnx", (1, 8, 8), images=test)
    runner, attack = open_file(made.files[0]).runner, PGD(steps=30, restarts=1)
    found = attack_file(runner, made.frozen, test, attack)
    assert found.images > 70
    # The attack went to the end of the radii.
    assert found.median_share > 0.99
    assert found.flips == ()

    def three_times_too_long(images):
        logits, radius = runner(images)
        return logits, 3 * radius

    assert len(attack_file(three_times_too_long, made.frozen, test, attack).flips) > 10


def written(kind: str, model: nn.Module, side: int, classes: int, images: torch.Tensor, folder):
    path = folder / f"net{TARGETS[kind].suffix}"
    export(TARGETS[kind], model.eval(), path, (1, side, side), "abcd"[:classes], images=images)
    return open_file(path)


@targets
def test_a_pixel_that_is_no_number_or_none_of_an_image_has_no_radius(kind, tmp_path):
    torch.manual_seed(0)
    images = torch.rand(64, 1, 8, 8)
    file = written(kind, nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 4)), 8, 4, images, tmp_path)
    assert float(file.runner(images[:1])[1]) > 0
    for bad in (torch.nan, torch.inf, -0.1, 1.1):
        spoilt = images[:1].repeat(64, 1, 1, 1)
        spoilt.view(64, 64).fill_diagonal_(bad)
        assert file.runner(spoilt)[1].tolist() == [0.0] * 64
        with pytest.raises(ArgumentError, match="must lie in"):
            file(spoilt)


@targets
@pytest.mark.parametrize("swapped", [False, True])
def test_logits_that_overflow_in_float32_have_no_radius(kind, swapped, tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False)).requires_grad_(False)
    rows = torch.tensor([[1.5e38] * 4, [0.0] * 4])
    model[1].weight.copy_(rows.flip(0) if swapped else rows)
    torch.manual_seed(0)
    file = written(kind, model, 2, 2, torch.rand(32, 1, 2, 2) * 0.2 + 0.05, tmp_path)
    logits, radius = file(torch.tensor([[[[0.9, 0.9], [0.9, 0.0]]]]))
    assert not bool(torch.isfinite(logits).all())
    assert radius.tolist() == [0.0]
