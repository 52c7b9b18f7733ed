"""A learned scale: the filter times a factor in [-1, 1], from the identity to the norm bound."""

import math

import pytest
import torch

import skewconv
from skewconv import nn as snn
from skewconv.errors import ArgumentError


@pytest.mark.parametrize("training", [False, True])
def test_it_scales_the_very_filter_of_a_layer_without_it(training: bool) -> None:
    torch.manual_seed(0)
    plain = snn.SOC2d(4, 4, 3, dtype=torch.float64).train(training)
    scaled = snn.SOC2d(4, 4, 3, dtype=torch.float64, learn_scale=0.25).train(training)
    scaled.load_state_dict(plain.state_dict() | {"scale_angle": scaled.scale_angle.detach()})
    torch.testing.assert_close(scaled.weight, 0.25 * plain.weight)
    with torch.no_grad():
        scaled.scale_angle.fill_(-math.pi / 2)  # the inverse rotation
    torch.testing.assert_close(scaled.weight, -plain.weight)


@pytest.mark.parametrize("learn_scale", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("kind", [snn.SOC1d, snn.SOC2d, snn.SUC2d, snn.SOCTranspose2d])
def test_evaluation_proves_the_norm_that_is_left_and_takes_fewer_products(kind: type, learn_scale: float) -> None:
    layer = kind(4, 4, 3, learn_scale=learn_scale).eval()
    size = (8,) * layer.axes
    norm = torch.linalg.matrix_norm(skewconv.ops.dense_jacobian(layer.weight, size), 2)
    assert norm <= layer.proven_norm_bound() <= learn_scale * layer.norm_bound + 0.05
    assert layer.polynomial().norm_bound >= norm
    low, high = layer.gain_bounds()
    assert 1 - 1e-5 < low <= high <= 1
    if learn_scale < 1:
        assert layer.polynomial().degree < kind(4, 4, 3).eval().polynomial().degree
        assert layer.train().polynomial(training=True).degree <= kind(4, 4, 3).polynomial(training=True).degree


def test_it_has_the_gradient_of_its_own_map_and_is_learned() -> None:
    torch.manual_seed(0)
    layer = snn.SOC2d(2, 2, 3, dtype=torch.float64, learn_scale=0.3, accurate=True).eval()
    x, y = torch.randn(2, 3, 2, 5, 5, dtype=torch.float64)

    def loss(angle: torch.Tensor) -> torch.Tensor:
        return (torch.func.functional_call(layer, {"scale_angle": angle}, (x,)) - y).square().sum()

    angle = layer.scale_angle.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(loss, (angle,), eps=1e-5, atol=1e-4)
    goal = snn.SOC2d.from_filter(torch.randn(2, 2, 3, 3, dtype=torch.float64), norm_bound=1.2).eval()
    student = snn.SOC2d(2, 2, 3, dtype=torch.float64, learn_scale=0.1).train()
    optimizer = torch.optim.Adam(student.parameters(), lr=0.02)
    for _ in range(150):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(student(x), goal(x)).backward()
        optimizer.step()
    assert abs(float(student.scale().detach())) > 0.4


def test_a_network_with_it_is_certified_frozen_and_loaded_as_any(tmp_path) -> None:
    torch.manual_seed(0)
    options = {"depth": 5, "in_channels": 1, "input_size": 16, "width": 4, "conv_options": {"learn_scale": 0.2}}
    model = skewconv.models.LipConvnet(**options).eval()
    images = torch.rand(3, 1, 16, 16)
    frozen = skewconv.freeze(model, (1, 16, 16), tol=1e-5)
    torch.testing.assert_close(frozen(images), model(images), atol=1e-4, rtol=0)
    plain = skewconv.models.LipConvnet(**options | {"conv_options": {}}).eval()
    bounds = [skewconv.nn.lipschitz_upper_bound(each, (1, 16, 16)) for each in (model, plain)]
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-5)
    assert bool((skewconv.predict(model, images).radii > 0).all())
    again = skewconv.models.LipConvnet(**options).eval()
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again(images), model(images), atol=0, rtol=0)


@pytest.mark.parametrize("learn_scale", [0.0, -0.1, 1.5, math.nan])
def test_a_share_outside_its_range_is_refused(learn_scale: float) -> None:
    with pytest.raises(ArgumentError, match="learn_scale"):
        snn.SOC2d(4, 4, 3, learn_scale=learn_scale)


def test_singular_values_that_are_clipped_one_by_one_leave_the_filters_of_three_taps() -> None:
    """Why a layer scales its norm: cut back to 3 x 3 taps, the clipped map has a norm above the clip again."""
    torch.manual_seed(0)
    skew, n, clip = skewconv.ops.skew_filter(torch.randn(8, 8, 3, 3, dtype=torch.float64)), 12, 0.5
    skew = skew / skewconv.ops.norm_estimate(skew, n, "circular")
    symbols = torch.fft.ifft2(torch.nn.functional.pad(skew, (0, n - 3, 0, n - 3)).roll((-1, -1), (2, 3)))
    angles, vectors = torch.linalg.eigh(-1j * n**2 * symbols.permute(2, 3, 0, 1))
    clipped = 1j * (vectors * angles.clamp(-clip, clip)[..., None, :]) @ vectors.mH
    taps = torch.fft.fft2(clipped.permute(2, 3, 0, 1)).real.roll((1, 1), (2, 3)) / n**2
    assert skewconv.ops.norm_estimate(taps[:, :, :3, :3], n, "circular") > 1.1 * clip
