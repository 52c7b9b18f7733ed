"""Attacks on the radii of a file, judged by onnxruntime in its own arithmetic."""

import pytest
import torch
from sklearn.datasets import load_digits

from benchmarks.file_attack import attack_file
from skewconv.certify import PGD
from skewconv.export import TARGETS, onnx
from skewconv.models import LipConvnet


@pytest.fixture(scope="module")
def exported_digits(tmp_path_factory):
    """A network that was trained on digits for a moment, exported, and test images."""
    torch.manual_seed(0)
    pixels = torch.tensor(load_digits().images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(load_digits().target)
    model = LipConvnet(5, in_channels=1, input_size=8, width=4, mean=0.3, std=0.4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for batch in torch.randint(1500, (40, 64)):
        loss = torch.nn.functional.cross_entropy(4 * model(pixels[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    test = pixels[1500:1580]
    made = onnx(model.eval(), tmp_path_factory.mktemp("digits") / "digits.onnx", (1, 8, 8), images=test)
    return made, test


def test_no_point_inside_a_radius_has_another_class_in_onnxruntime(exported_digits):
    made, test = exported_digits
    found = attack_file(TARGETS["onnx"].read(made.files[0]).runner, made.frozen, test, PGD(steps=30, restarts=1))
    assert found.images > 70
    # The attack went to the end of the radii.
    assert found.median_share > 0.99
    assert found.flips == ()


def test_the_same_attack_breaks_radii_that_are_three_times_too_long(exported_digits):
    made, test = exported_digits
    runner = TARGETS["onnx"].read(made.files[0]).runner

    def boasting(images):
        logits, radius = runner(images)
        return logits, 3 * radius

    assert len(attack_file(boasting, made.frozen, test, PGD(steps=30, restarts=1)).flips) > 10
