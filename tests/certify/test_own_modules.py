"""A residual network that somebody has written: certified, attacked, checked, frozen."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import skewconv
from skewconv import nn as snn
from skewconv.certify import Certifier, certify_dataset, check_certificates
from skewconv.certify.perturb import PGD
from skewconv.nn.affine_bounds import Bounds

SHAPE = (1, 8, 8)


class Block(nn.Module):
    """A convex combination of x and what an orthogonal and a plain convolution make of it, and a little of x again."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mix, self.conv = snn.SOC2d(channels, channels, 3), nn.Conv2d(channels, channels, 3, padding=1)
        self.bn, self.relu = nn.BatchNorm2d(channels), nn.ReLU(inplace=True)
        self.alpha = nn.Parameter(torch.tensor(-0.5))

    def forward(self, x):
        share = torch.sigmoid(self.alpha)
        out = (1 - share) * x + share * self.mix(self.relu(self.bn(self.conv(x))))
        out += 0.1 * x
        return out


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.4]))
        self.stem, self.blocks = snn.SOC2d(1, 4, 3, stride=2), nn.Sequential(Block(4), Block(4))
        self.fc = nn.Linear(16, 4)

    def forward(self, x):
        x = self.blocks(self.stem((x - self.mean.view(1, -1, 1, 1)) / 0.5))
        return self.fc(F.avg_pool2d(x, 2).view(x.size(0), -1))


@pytest.fixture(scope="module")
def case():
    torch.manual_seed(0)
    model, images = Net(), torch.rand(24, *SHAPE)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_var.uniform_(0.5, 2)
            module.running_mean.uniform_(-0.1, 0.1)
    with torch.no_grad():
        labels = model.eval()(images).argmax(1)
    return model, images, labels


def test_no_attack_at_the_radius_finds_anything(case):
    model, images, labels = case
    certifier = Certifier(model, SHAPE)
    found = certifier(images, labels).radii
    assert float(found.median()) > 1e-3
    exact = skewconv.nn.module_tools.float64_copy(model)
    moved = PGD(steps=40, restarts=2)(exact, images.double(), labels, found)
    assert float(((moved - images).flatten(1).norm(dim=1) / found).max()) > 0.9
    for logits in (certifier.logits(moved), exact(moved)):
        assert torch.equal(logits.argmax(1), labels)
    # The attack is no weak one: at some larger distance it succeeds.
    further = PGD(steps=40, restarts=2)(exact, images.double(), labels, 6 * found + 0.05)
    assert bool((exact(further).argmax(1) != labels).any())


def test_its_certificates_are_checked_and_a_branch_without_its_bound_is_noticed(case, tmp_path, monkeypatch):
    model, images, labels = case
    for name in ("sound", "broken"):
        (tmp_path / name).mkdir()
    certify_dataset(model, images, labels).write(tmp_path / "sound")
    assert check_certificates(tmp_path / "sound", model, images, labels).sound
    with monkeypatch.context() as patch:
        plus = Bounds.plus
        patch.setattr(Bounds, "plus", lambda self, other: replace(plus(self, other), lipschitz=self.lipschitz))
        certify_dataset(model, images, labels).write(tmp_path / "broken")
    report = check_certificates(tmp_path / "broken", model, images, labels)
    assert not report.sound
    assert report.largest_ratio > 1.3
