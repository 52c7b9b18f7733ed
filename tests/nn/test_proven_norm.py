"""A proven norm for any convolution: the parametrization against dense matrices."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm

import skewconv
from skewconv.errors import ArgumentError
from skewconv.nn import MaxMin, OrthogonalLinear, proven_norm
from skewconv.ops import dense_matrix

LAYERS = {
    "linear": (lambda: nn.Linear(6, 4), (6,)),
    "1d": (lambda: nn.Conv1d(3, 5, 4, padding=2), (3, 9)),
    "2d": (lambda: nn.Conv2d(3, 4, 3, padding=1), (3, 7, 7)),
    "strided": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), (4, 8, 8)),
    "dilated": (lambda: nn.Conv2d(2, 2, 3, padding=2, dilation=2), (2, 8, 8)),
    "grouped": (lambda: nn.Conv2d(4, 4, 3, padding=1, groups=2), (4, 6, 6)),
    "circular": (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), (3, 6, 6)),
    "3d": (lambda: nn.Conv3d(2, 2, 3, padding=1), (2, 4, 4, 4)),
}


def norm_of(layer: nn.Module, shape: tuple[int, ...]) -> float:
    return float(torch.linalg.matrix_norm(dense_matrix(lambda x: layer(x) - layer(0 * x[:1]), shape).detach(), 2))


@pytest.mark.parametrize("name", LAYERS)
def test_no_image_is_stretched_and_the_largest_hardly_shrunk(name: str) -> None:
    build, shape = LAYERS[name]
    layer = proven_norm(build().double(), norm=0.5).eval()
    # On a small image, and where pixels are skipped, the bound for all sizes is not reached.
    assert 0.5 * 0.5 < norm_of(layer, shape) <= 0.5 * (1 + 1e-12)
    assert skewconv.nn.lipschitz_upper_bound(layer, shape) <= 0.5 * (1 + 1e-6)
    layer.train()
    for _ in range(40):
        layer(torch.zeros(1, *shape, dtype=torch.float64))
    assert norm_of(copy.deepcopy(layer), shape) <= 0.5 * 1.02


def test_the_norm_of_the_weight_as_a_matrix_is_not_that_of_the_convolution() -> None:
    """Why PyTorch's own parametrization is not this one."""
    layer = nn.Conv2d(1, 1, 3, padding=1, bias=False)
    nn.init.ones_(layer.weight)
    layer = layer.double()
    assert norm_of(spectral_norm(copy.deepcopy(layer)).eval(), (1, 16, 16)) > 2.5
    assert norm_of(proven_norm(layer).eval(), (1, 16, 16)) <= 1


def test_a_network_trains_with_it_and_is_certified_frozen_and_stripped() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        proven_norm(nn.Conv2d(1, 8, 3, padding=1)), MaxMin(), nn.AvgPool2d(2),
        proven_norm(nn.Conv2d(8, 8, 3, padding=1)), MaxMin(), nn.Flatten(), OrthogonalLinear(128, 2),
    )  # fmt: skip
    x = torch.rand(64, 1, 8, 8)
    y = (x[:, 0, :4].mean((1, 2)) > x[:, 0, 4:].mean((1, 2))).long()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(60):
        loss = nn.functional.cross_entropy(20 * model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]
    model.eval()
    found = skewconv.predict(model, x)
    assert float((found.classes == y).double().mean()) > 0.8
    assert bool((found.radii >= 0).all())
    assert float(found.radii.max()) > 0
    frozen = skewconv.freeze(model, (1, 8, 8))
    torch.testing.assert_close(frozen(x), model(x), atol=1e-5, rtol=0)
    before = model(x)
    for layer in model:
        if parametrize.is_parametrized(layer):
            parametrize.remove_parametrizations(layer, "weight")
    torch.testing.assert_close(model(x), before)


def test_evaluation_notices_a_changed_weight_and_a_copy_is_its_own() -> None:
    layer = proven_norm(nn.Linear(4, 4, bias=False).double()).eval()
    other = copy.deepcopy(layer)
    x = torch.eye(4, dtype=torch.float64)
    first = layer(x)
    with torch.no_grad():
        layer.parametrizations.weight.original[0] *= 50
    assert norm_of(layer, (4,)) <= 1 + 1e-12
    torch.testing.assert_close(other(x), first)


def test_layers_without_such_a_norm_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"takes nn\.Linear.*got ReLU"):
        proven_norm(nn.ReLU())
    with pytest.raises(ArgumentError, match="padding_mode='reflect'"):
        proven_norm(nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"))
    with pytest.raises(ArgumentError, match="norm"):
        proven_norm(nn.Linear(2, 2), norm=0.0)
