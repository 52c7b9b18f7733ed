"""Radii at every scale, where squares underflow or overflow in float64 (1e-162 and 1e154), and where sums overflow.

Linear models are held against the exact distance to the boundary in rational numbers. What overflows on the way
certifies nothing: rounding is bounded for numbers that float64, or float32, can hold.
"""

import pytest
import torch
from torch import nn

from skewconv.certify import Certifier, certify_dataset
from skewconv.nn import CPL2d
from tests.certify.oracles import assert_no_radius_reaches_an_exact_boundary, float64_program

D = torch.float64
ONE = torch.tensor([1])


@pytest.mark.parametrize("weight_exponent", [-1000, -560, 0, 400, 900])
@pytest.mark.parametrize("image_exponent", [-1000, -540, -300, 0])
def test_no_radius_of_a_linear_model_reaches_beyond_the_exact_boundary(
    weight_exponent: int, image_exponent: int
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 4, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.mul_(2.0 ** (weight_exponent / 2)).mul_(2.0 ** (weight_exponent / 2))
    images = torch.rand(20, 8, dtype=torch.float64) * 2.0**image_exponent
    labels = model(images).argmax(1)
    found = Certifier(model, (8,))(images, labels).radii
    assert_no_radius_reaches_an_exact_boundary(model.weight.detach(), None, images, labels, found)
    if weight_exponent + image_exponent > -900:
        assert (found > 0).double().mean() > 0.9


def test_layers_whose_product_underflows_certify_nothing() -> None:
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU(), nn.Linear(8, 4, bias=False)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0**-560)
    images = torch.rand(20, 8, dtype=torch.float64)
    certifier = Certifier(model, (8,))
    assert certifier.lipschitz > 0
    assert float(certifier.pair_bounds[0, 1]) > 0
    assert certifier(images, torch.zeros(20, dtype=torch.int64)).radii.tolist() == [0.0] * 20


def test_equal_rows_never_overtake_each_other() -> None:
    model = nn.Linear(3, 2, dtype=torch.float64)
    with torch.no_grad():
        model.weight[1] = model.weight[0]
        model.bias.copy_(torch.tensor([1.0, 0.0]))
    certifier = Certifier(model, (3,))
    assert certifier.pair_bounds.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def chain(*weights: float, shift: float) -> nn.Sequential:
    """Numbers multiplied one after the other; then class 1 leads by twice the shift, and class 0 gains on it."""
    *body, last = weights
    layers: list[nn.Module] = [nn.Linear(1, 1, bias=False, dtype=D) for _ in body]
    model = nn.Sequential(*layers, nn.Linear(1, 2, dtype=D)).requires_grad_(False)
    for layer, weight in zip(layers, body, strict=True):
        layer.weight.fill_(weight)
    model[-1].weight.copy_(torch.tensor([[last], [-last]], dtype=D))
    model[-1].bias.copy_(torch.tensor([-shift, shift], dtype=D))
    return model


class Branch(nn.Module):
    """The same in a graph: multiplied, and multiplied back."""

    def __init__(self) -> None:
        super().__init__()
        self.head = chain(1.0, shift=1e30)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 1e300
        return self.head(y * 1e-300 + x)


def steep_norm() -> nn.Sequential:
    """A deviation of 1e-150, divided by first, and a weight that makes up for it."""
    norm = nn.BatchNorm1d(1, eps=1e-300, dtype=D).requires_grad_(False)
    norm.running_var.fill_(0.0)
    norm.weight.fill_(1e-150)
    return nn.Sequential(norm, chain(1.0, shift=1e200)).eval()


@pytest.mark.parametrize(
    ("model", "overflows_at"),
    [
        (chain(1e200, 1e107, 1e-307, shift=1e3), 1e2),
        (chain(1e200, 1e-200, shift=1e150), 1e120),
        (Branch(), 1e9),
        (steep_norm(), 1e160),
    ],
    ids=["chain", "far away", "branch", "batch norm"],
)
def test_no_radius_reaches_a_point_where_something_overflows(model: nn.Module, overflows_at: float) -> None:
    certifier = Certifier(model, (1,), input_range=None)
    x = torch.full((1, 1), 1e-3, dtype=D)
    radius = float(certifier(x, ONE).radii)
    assert radius < overflows_at
    for share in (0.5, 0.99):
        assert certifier.logits(x + share * radius).argmax(1) == ONE


def test_a_radius_of_the_float32_network_is_proven_only_where_float32_does_not_overflow() -> None:
    model = chain(1e25, 1e-35, shift=1e9).float()
    found = certify_dataset(model, torch.full((3, 1), 0.5), torch.ones(3, dtype=torch.int64), input_range=None)
    far = torch.full((1, 1), 1e15)
    assert not bool(torch.isfinite(model(far)).all())
    assert found.facts["float32_slack"]["kind"] == "measured"
    assert float(found.radius[0]) > 1e15


def test_what_a_residual_step_computes_inside_counts_too() -> None:
    layer = CPL2d(2, 2, 3, dtype=D).eval()
    plain = float64_program(layer, (2, 4, 4)).bounds.max_input_norm
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(1e60)
    assert 0 < float64_program(layer, (2, 4, 4)).bounds.max_input_norm < 1e-40 * plain
