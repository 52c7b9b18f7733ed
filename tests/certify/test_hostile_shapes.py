"""Attempts to obtain a certificate that does not hold, by tensors that repeat what a layer makes, or by other axes."""

import pytest
import torch
from torch import nn

from skewconv.certify import Certifier, certify_dataset, check_certificates, radii
from skewconv.certify.ball_intake import described
from skewconv.errors import SkewconvError, UnboundedModuleError
from skewconv.models.resnet import ResidualBlock
from skewconv.nn import (
    AOL2d,
    BCOP2d,
    Cayley2d,
    GroupSort,
    Householder,
    MaxMin,
    Normalize,
    SOC2d,
    lipschitz_upper_bound,
)

SHAPE = (1, 2, 2)


def with_bias(layer: nn.Module) -> nn.Module:
    layer.bias = nn.Parameter(torch.zeros(16))
    return layer.eval()


def wide_mean() -> Normalize:
    layer = Normalize(0.0, 1.0)
    layer.mean, layer.std = torch.zeros(1, 16), torch.ones(1, 16)
    return layer


def wide_angles() -> Householder:
    layer = Householder(2)
    layer.theta = nn.Parameter(torch.rand(1, 16))
    return layer


WIDE = {
    "normalize": (wide_mean, SHAPE),
    "householder": (wide_angles, (2, 2, 2)),
    **{kind.__name__: (lambda kind=kind: with_bias(kind(1, 1, 1)), SHAPE) for kind in (AOL2d, BCOP2d, Cayley2d, SOC2d)},
}


@pytest.mark.parametrize("name", WIDE)
def test_a_tensor_that_repeats_what_a_layer_makes_is_refused(name):
    build, shape = WIDE[name]
    layer = build()
    features = layer(torch.zeros(1, *shape)).numel()
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(features, 2)).eval()
    with pytest.raises(SkewconvError):
        radii(model, torch.rand(2, *shape), torch.tensor([0, 1]))
    with pytest.raises(SkewconvError):
        list(described(model.double(), shape))
    with pytest.raises(SkewconvError):
        lipschitz_upper_bound(layer, shape)


def block(c_in: int, c_out: int, padding: int) -> ResidualBlock:
    made = ResidualBlock((1,), (c_in, c_in), 1, lambda *sizes: nn.Conv2d(*sizes[:3], padding=padding))
    made.residual = nn.Conv2d(c_in, c_out, 1, padding=padding)
    return made.eval()


@pytest.mark.parametrize(("made", "shape"), [(block(1, 16, 0), (1, 4, 4)), (block(16, 16, 1), (16, 1, 1))])
def test_a_sum_of_two_shapes_is_refused(made, shape):
    features = made(torch.zeros(1, *shape)).numel()
    model = nn.Sequential(made, nn.Flatten(), nn.Linear(features, 2)).eval()
    for ask in (
        lambda: Certifier(model, shape),
        lambda: lipschitz_upper_bound(made, shape),
    ):
        with pytest.raises(UnboundedModuleError):
            ask()


def test_a_block_is_bounded_at_the_shapes_that_its_parts_meet():
    made = block(4, 4, 0)
    made.activation, made.residual = nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(4)
    made.shortcut = nn.AdaptiveAvgPool2d(4)
    # The mean of four pixels has the norm 1/2, and pools of 4 x 4 pixels to 4 x 4 are identities: (1 + 1) / 2.
    assert lipschitz_upper_bound(made, (4, 8, 8)) == pytest.approx(1.0)


@pytest.mark.parametrize("layer", [GroupSort(None, dim=0), GroupSort(2, dim=0), MaxMin(dim=0), Householder(2, dim=0)])
def test_an_axis_that_is_the_batch_is_refused_however_small_the_logits(layer):
    model = nn.Sequential(layer, nn.Linear(6, 3))
    with torch.no_grad():
        for parameter in model[1].parameters():
            parameter.mul_(1e-8)
    with pytest.raises(UnboundedModuleError, match="batch"):
        Certifier(model, (6,))


def test_certificates_of_images_in_any_order_are_checked(tmp_path):
    torch.manual_seed(0)
    model, images = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).eval(), torch.rand(9, *SHAPE)
    labels, index = torch.randint(3, (9,)), torch.tensor([5, 2, 7])
    certify_dataset(model, images[index], labels[index], index=index).write(tmp_path)
    assert check_certificates(tmp_path, model, images, labels).problems == ()


def test_a_constant_network_with_a_tie_is_checked(tmp_path):
    model = nn.Linear(4, 3).requires_grad_(False)
    model.weight.zero_()
    model.bias.copy_(torch.tensor([1.0, 1.0, 0.0]))
    images, labels = torch.rand(2, 4), torch.tensor([0, 1])
    certify_dataset(model, images, labels).write(tmp_path)
    assert check_certificates(tmp_path, model, images, labels).problems == ()


@pytest.mark.parametrize(
    ("pool", "shape"), [(nn.AvgPool1d(4), (8,)), (nn.AvgPool2d(2), (4, 4)), (nn.MaxPool2d(2), (4, 4))]
)
def test_pools_of_images_without_channels_are_checked(pool, shape, tmp_path):
    torch.manual_seed(0)
    features = pool(torch.zeros(1, *shape)).numel()
    model, images = nn.Sequential(pool, nn.Flatten(), nn.Linear(features, 3)).eval(), torch.rand(4, *shape)
    labels = torch.randint(3, (4,))
    certify_dataset(model, images, labels).write(tmp_path)
    assert check_certificates(tmp_path, model, images, labels).problems == ()


class Gated(nn.Module):
    """A residual step behind a gate that is still closed, as after some initialisations."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.gate, self.head = nn.Linear(4, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 3)
        nn.init.zeros_(self.gate.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x + torch.relu(self.gate(self.inner(x))))


def test_a_network_with_a_layer_of_zeros_is_checked(tmp_path):
    torch.manual_seed(0)
    model, images, labels = Gated().eval(), torch.rand(4, 4), torch.randint(3, (4,))
    certify_dataset(model, images, labels).write(tmp_path)
    assert check_certificates(tmp_path, model, images, labels).problems == ()
