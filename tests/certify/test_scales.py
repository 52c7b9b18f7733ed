"""Radii of linear models at every scale, against the exact distance to the boundary in rational numbers.

The scales are those at which squares underflow or overflow in float64 (1e-162 and 1e154), where an earlier certifier
gave infinite radii, or radii beyond the boundary.
"""

from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from skewconv.certify import Certifier
from skewconv.errors import NotFiniteError


def beyond_the_boundary(weight: Tensor, images: Tensor, labels: Tensor, radii: Tensor) -> int:
    """How many radii are above min_i <w_t - w_i, x> / ||w_t - w_i||, the distance at which a rival draws level."""
    rows = [[Fraction(v) for v in row] for row in weight.tolist()]
    count = 0
    for image, label, radius in zip(images.tolist(), labels.tolist(), radii.tolist(), strict=True):
        x = [Fraction(v) for v in image]
        for rival, row in enumerate(rows):
            if rival == label:
                continue
            difference = [a - b for a, b in zip(rows[label], row, strict=True)]
            margin = sum(d * v for d, v in zip(difference, x, strict=True))
            square = sum(d * d for d in difference)
            if radius == float("inf") or margin <= 0 or Fraction(radius) ** 2 * square > margin**2:
                count += radius > 0
                break
    return count


@pytest.mark.parametrize("weight_exponent", [-1000, -560, -300, 0, 400, 900])
@pytest.mark.parametrize("image_exponent", [-1000, -540, -300, 0])
def test_no_radius_of_a_linear_model_reaches_beyond_the_exact_boundary(
    weight_exponent: int, image_exponent: int
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 4, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.mul_(2.0 ** (weight_exponent / 2)).mul_(2.0 ** (weight_exponent / 2))
    images = torch.rand(40, 8, dtype=torch.float64) * 2.0**image_exponent
    labels = model(images).argmax(1)
    found = Certifier(model, (8,))(images, labels).radii
    assert beyond_the_boundary(model.weight, images, labels, found) == 0
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


@pytest.mark.parametrize("weight", [1e200, 1e300])
def test_a_batch_norm_with_huge_weights_is_certified_or_refused(weight: float) -> None:
    model = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 4)).double().eval()
    images = torch.rand(10, 8, dtype=torch.float64)
    with torch.no_grad():
        model[0].weight.fill_(weight)
        if weight > 1e250:
            model[1].weight.mul_(1e100)
            with pytest.raises(NotFiniteError, match="not finite"):
                Certifier(model, (8,))
        else:
            assert (Certifier(model, (8,))(images, model(images).argmax(1)).radii < 10).all()
