"""Activations: 1-Lipschitz for every pair of points, with an orthogonal Jacobian almost everywhere."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from skewconv.errors import ArgumentError, ShapeError
from skewconv.nn.basic_layers import GroupSort, Householder, MaxMin
from skewconv.ops.permutations import sorted_halves


def random_householder(channels: int, order: int) -> Householder:
    layer = Householder(channels, order, dtype=torch.float64)
    nn.init.uniform_(layer.theta, -7, 7)
    return layer


BUILDERS = {
    "MaxMin": lambda c: MaxMin(),
    "GroupSort": lambda c: GroupSort(),
    "GroupSort of four": lambda c: GroupSort(4),
    "full sort": lambda c: GroupSort(None),
    "Householder": lambda c: random_householder(c, 1),
    "Householder of order two": lambda c: random_householder(c, 2),
}
activations = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)


@activations
@pytest.mark.parametrize("axes", [0, 1, 2, 3])
def test_every_number_of_spatial_axes_is_the_same_map_at_each_pixel(build, axes: int) -> None:
    layer, x = build(8), torch.randn(2, 8, *(3,) * axes, dtype=torch.float64)
    with torch.no_grad():
        y = layer(x)
        pixels = x.movedim(1, -1).reshape(-1, 8)
        # exact: elementwise, each operation rounded correctly
        assert torch.equal(y.movedim(1, -1).reshape(-1, 8), layer(pixels))
        unbatched = copy.deepcopy(layer)
        unbatched.dim = -1 - axes
        assert torch.equal(unbatched(x[0]), y[0])
        assert torch.equal(unbatched(x), y)
        assert layer(x[:0]).shape == x[:0].shape


def test_maxmin_is_the_definition_in_the_appendix() -> None:
    x = torch.randn(2, 6, 4, 4)
    y, a, b = MaxMin()(x), x[:, :3], x[:, 3:]
    assert torch.equal(y[:, :3], torch.max(a, b))  # moved, and below
    assert torch.equal(y[:, 3:], torch.min(a, b))


@given(st.lists(st.floats(-10, 10), min_size=4, max_size=4))
def test_group_sort_sorts_consecutive_channels(values: list[float]) -> None:
    x = torch.tensor([values], dtype=torch.float64)
    assert GroupSort()(x)[0].tolist() == [*sorted(values[:2]), *sorted(values[2:])]
    assert (
        GroupSort(4)(x)[0].tolist() == GroupSort(-1)(x)[0].tolist() == GroupSort(None)(x)[0].tolist() == sorted(values)
    )


@given(st.floats(-7, 7), st.floats(-3, 3), st.floats(-3, 3))
def test_householder_reflects_where_the_paper_says(theta: float, first: float, second: float) -> None:
    layer = Householder(2, dtype=torch.float64)
    nn.init.constant_(layer.theta, theta)
    z = np.array([first, second])
    v = np.array([math.sin(theta / 2), -math.cos(theta / 2)])
    expected = z if v @ z > 0 else (np.eye(2) - 2 * np.outer(v, v)) @ z
    y = layer(torch.from_numpy(z)[None]).detach().numpy()[0]
    np.testing.assert_allclose(y, expected, atol=1e-12)


def test_householder_of_order_two_carries_identity_reflections_and_a_rotation() -> None:
    layer = Householder(2, order=2, dtype=torch.float64)
    with torch.no_grad():
        layer.theta.copy_(torch.tensor([[1.0], [3.5]]))
    angles = torch.linspace(0, 2 * math.pi, 400, dtype=torch.float64)[:-1]
    kinds = set()
    for angle in angles:
        x = torch.stack([angle.cos(), angle.sin()])[None]
        jacobian = torch.autograd.functional.jacobian(layer, x).reshape(2, 2)
        kinds.add((round(float(torch.det(jacobian))), tuple(jacobian.round(decimals=6).flatten().tolist())))
    assert sorted(determinant for determinant, _ in kinds) == [-1, -1, 1, 1]
    assert (1, (1.0, 0.0, 0.0, 1.0)) in {(d, tuple(v + 0.0 for v in m)) for d, m in kinds}


@pytest.mark.parametrize("order", [1, 2])
def test_every_angle_gets_a_gradient_from_the_start(order: int) -> None:
    layer = Householder(6, order)
    (layer(torch.randn(500, 6)) * torch.randn(500, 6)).sum().backward()
    assert layer.theta.grad is not None
    assert bool((layer.theta.grad.abs() > 1e-3).all())


def test_channels_that_do_not_pair_up_are_refused_by_their_number() -> None:
    for layer, shape, words in (
        (MaxMin(), (2, 7, 4, 4), r"MaxMin.*got 7 on axis 1"),
        (GroupSort(), (2, 7, 4, 4), "group_size=2, got 7"),
        (Householder(6), (2, 8), "got 8 channels"),
        (MaxMin(), (4,), "axis 1"),
    ):
        with pytest.raises(ShapeError, match=words):
            layer(torch.zeros(shape))
    with pytest.raises(ShapeError, match="got 7"):
        Householder(7)
    with pytest.raises(ArgumentError, match="order must be 1 or 2, got 3"):
        Householder(6, order=3)
    with pytest.raises(ArgumentError, match="group_size"):
        GroupSort(0)


def by_definition(x: Tensor, dim: int) -> Tensor:
    a, b = x.chunk(2, dim)
    return torch.cat([torch.maximum(a, b), torch.minimum(a, b)], dim)


@pytest.mark.parametrize("dim", [1, -1, -3])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_values_and_gradients_are_those_of_the_definition(dim, layout, dtype):
    # No two are equal: there the definition has another derivative.
    first = torch.randn(3, 4, 5, 6).to(dtype).chunk(2, dim)[0]
    x = torch.cat([first, first + 2 * torch.randint(2, first.shape) - 1], dim).to(memory_format=layout).requires_grad_()
    # Of very different sizes, so that nothing is rounded that should only be moved.
    grad = (torch.randn(3, 4, 5, 6) * 10.0 ** torch.randint(-4, 4, (3, 4, 5, 6))).to(dtype)
    found, wanted = sorted_halves(x, dim), by_definition(x, dim)
    assert torch.equal(found, wanted)  # values are only moved
    assert found.is_contiguous(memory_format=layout)
    assert torch.equal(*(torch.autograd.grad(y, x, grad)[0] for y in (found, wanted)))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_derivatives_of_every_kind_are_exact():
    x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: sorted_halves(x, 1), x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda x: sorted_halves(x, 1), x)


def test_a_tie_keeps_the_norm_of_a_gradient():
    x, grad = torch.zeros(2, 4, requires_grad=True), torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]])
    (found,) = torch.autograd.grad(sorted_halves(x, 1), x, grad)
    assert torch.equal(found.norm(dim=1), grad.norm(dim=1))
    assert torch.equal(found.sort(1).values, grad)
