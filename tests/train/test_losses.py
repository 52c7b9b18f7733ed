"""Losses: their gradients push where the certificates are."""

import math

import pytest
import torch
import torch.nn.functional as F

from skewconv.certify import radii
from skewconv.certify.certifier import margin_of
from skewconv.config import RegimeConfig
from skewconv.models import LipConvnet
from skewconv.train.step import certificate_regulariser, input_lipschitz, loss_of

LOGITS = torch.tensor([[2.0, 0.5, -1.0], [0.0, 1.0, 3.0], [1.0, 1.0, 0.0]])
LABELS = torch.tensor([0, 1, 0])


def test_a_margin_is_the_distance_to_the_best_other_class() -> None:
    assert margin_of(LOGITS, LABELS).tolist() == [1.5, -2.0, 0.0]


def test_plain_settings_are_plain_cross_entropy() -> None:
    torch.testing.assert_close(loss_of(LOGITS, LABELS, RegimeConfig()), F.cross_entropy(LOGITS, LABELS))


def test_the_scale_is_an_inverse_temperature_that_keeps_the_gradients_size() -> None:
    config = RegimeConfig(logit_scale=4.0)
    torch.testing.assert_close(loss_of(LOGITS, LABELS, config), F.cross_entropy(4 * LOGITS, LABELS) / 4)


def test_an_offset_asks_for_a_margin() -> None:
    lowered = LOGITS.clone()
    lowered[torch.arange(3), LABELS] -= 0.7
    torch.testing.assert_close(loss_of(LOGITS, LABELS, RegimeConfig(offset=0.7)), F.cross_entropy(lowered, LABELS))


def test_the_certificate_regulariser_is_minus_the_mean_radius_of_the_right_ones() -> None:
    assert float(certificate_regulariser(LOGITS, LABELS)) == pytest.approx(-1.5 / math.sqrt(2) / 3)
    with_it = loss_of(LOGITS, LABELS, RegimeConfig(gamma=0.5))
    assert float(with_it) == pytest.approx(float(F.cross_entropy(LOGITS, LABELS)) - 0.5 * 1.5 / math.sqrt(2) / 3)


def test_the_certificate_regulariser_counts_in_pixels() -> None:
    """A network with the Lipschitz constant L from pixels to logits has certificates of margin / (sqrt(2) L)."""
    assert float(certificate_regulariser(LOGITS, LABELS, 4.0)) == pytest.approx(-1.5 / (math.sqrt(2) * 4) / 3)
    with_it = loss_of(LOGITS, LABELS, RegimeConfig(gamma=0.5), 4.0)
    assert float(with_it) == pytest.approx(float(F.cross_entropy(LOGITS, LABELS)) - 0.5 * 1.5 / (math.sqrt(2) * 4) / 3)


def test_the_regulariser_of_a_run_is_the_mean_of_its_networks_radii() -> None:
    torch.manual_seed(0)
    model = LipConvnet(5, width=2, in_channels=1, input_size=8, std=0.125).double().eval()
    images = torch.rand(20, 1, 8, 8, dtype=torch.float64)
    logits = model(images)
    labels = logits.argmax(1)
    found = -float(certificate_regulariser(logits.detach(), labels, input_lipschitz(model)))
    assert found == pytest.approx(float(radii(model, images, labels).mean()), rel=1e-4)


def test_the_hinge_rests_once_the_margin_is_reached() -> None:
    config = RegimeConfig(loss="margin", logit_scale=2.0)
    logits = LOGITS.clone().requires_grad_()
    loss = loss_of(logits, LABELS, config)
    assert float(loss.detach()) == pytest.approx((0 + 5 + 1) / 3)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient[0].tolist() == [0.0, 0.0, 0.0]
    assert gradient[1].abs().sum() > 0


def test_label_smoothing_reaches_cross_entropy() -> None:
    config = RegimeConfig(label_smoothing=0.1)
    torch.testing.assert_close(loss_of(LOGITS, LABELS, config), F.cross_entropy(LOGITS, LABELS, label_smoothing=0.1))
