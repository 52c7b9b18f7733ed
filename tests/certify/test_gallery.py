"""Attempts to break certificates: each a way in which an estimate would pass for a bound, something stale remain, or a
filter lie at the edge of its proof."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from skewconv.certify import radii
from skewconv.models import LipConvnet
from skewconv.nn import AOL2d, CPL2d, OrthogonalLinear, SLL2d, SOC1d, SOC2d, SOC3d, SOCTranspose2d
from skewconv.nn.lowering import lipschitz_upper_bound
from skewconv.ops import dense_jacobian
from tests.certify.oracles import assert_sound_if_affine, assert_sound_under_attack, in_float64

KINDS = [AOL2d, SLL2d, CPL2d]
each_conv = pytest.mark.parametrize("conv", ["soc", "aol", "sll", "cpl"])


def net(conv: str = "soc") -> LipConvnet:
    return LipConvnet(5, in_channels=1, input_size=8, width=4, conv=conv)


def predicted(model: nn.Module, images: Tensor) -> Tensor:
    return in_float64(model)(images.double()).argmax(1)


def filter_of(module: nn.Module) -> nn.Parameter:
    """The parameter of its first filter."""
    names = ("free", "raw_weight", "weight")
    return next(p for name, p in module.named_parameters() if name.rpartition(".")[2] in names)


@pytest.mark.parametrize("conv", ["soc", "cpl"])
def test_power_vectors_that_have_not_converged_do_not_matter(conv):
    model = net(conv)
    images = torch.rand(4, 1, 8, 8)
    expected = assert_sound_under_attack(model, images)
    labels = predicted(model, images)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.rpartition(".")[2] in ("u0", "u1", "power_vector"):
                # Orthogonal to the leading vectors, or nothing at all: the estimates are then near zero.
                buffer.copy_(torch.zeros_like(buffer) if name.endswith("u0") else 1e-6 * torch.randn_like(buffer))
    # repeated: the vectors have no part in it
    assert torch.equal(radii(model, images, labels), expected)


@pytest.mark.parametrize("factor", [1e6, 1e-6])
@each_conv
def test_weights_of_any_size_are_normalised(conv, factor):
    model = net(conv)
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, (SOC2d, *KINDS)):
                for parameter in layer.parameters():
                    parameter *= factor
                # Biases of 1e6 leave no margin to certify; the filters are what is tested.
                if layer.bias is not None:
                    layer.bias.zero_()
    assert_sound_under_attack(model, torch.rand(3, 1, 8, 8))


@each_conv
@pytest.mark.parametrize("through", ["data", "view", "load_state_dict"])
def test_weights_changed_after_a_forward_are_certified_as_they_are_now(conv, through):
    model, fresh = net(conv), net(conv)
    images = torch.rand(4, 1, 8, 8)
    with torch.no_grad():
        model.train()(images)
        model.eval()(images)  # fills every cache
    before = radii(model, images, predicted(model, images))
    if through == "data":
        filter_of(model).data[0] *= -5
    elif through == "view":
        filter_of(model).detach().view(-1)[:64] += 3.0
    else:
        model.load_state_dict(net(conv).state_dict())
    fresh.load_state_dict(model.state_dict())
    now = predicted(fresh, images)
    assert torch.equal(radii(model, images, now), radii(fresh, images, now))  # repeated
    assert not torch.equal(radii(model, images, now), before)
    assert_sound_under_attack(model, images)


@each_conv
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_are_certified_as_stored(conv, dtype):
    assert_sound_under_attack(net(conv).to(dtype), torch.rand(3, 1, 8, 8))
    # The layer in its own precision is never expansive either: the rounding of its filter is in the norm bound.
    layer = SOC2d(2, 2, 3, bias=False, dtype=dtype).eval()
    jacobian = dense_jacobian(layer.weight.detach().double(), 4)
    assert float(torch.linalg.matrix_norm(jacobian, 2)) <= layer.proven_norm_bound()


def second_group_outweighs_the_first() -> SOC2d:
    layer = SOC2d(4, 4, 3, groups=2)
    with torch.no_grad():
        layer.free[:, 2:] *= 100.0
        layer.centre[1] *= 100.0
    return layer


AFFINE = {
    **{
        f"{series} of degree {degree}": (lambda s=series, d=degree: SOC2d(2, 2, 3, series=s, eval_degree=d), (2, 4, 4))
        for series, degree in product(("taylor", "chebyshev"), (0, 2, 3))
    },
    "groups": (second_group_outweighs_the_first, (4, 3, 3)),
    **{
        f"kernel {kernel} around side {side}": (
            lambda kernel=kernel: SOC2d(3, 3, kernel, padding_mode="circular"),
            (3, side, side),
        )
        for side, kernel in product((1, 2, 3), (1, 3))
    },
    "one axis": (lambda: SOC1d(4, 6, 3, stride=2, groups=2, dilation=2), (4, 6)),
    "three axes": (lambda: SOC3d(1, 8, 3, stride=2), (1, 4, 2, 4)),
    "three axes, circular": (lambda: SOC3d(2, 2, 3, padding_mode="circular"), (2, 3, 2, 4)),
    "adjoint": (lambda: SOCTranspose2d(8, 2, 3, stride=2, groups=2), (8, 3, 2)),
    "dilation": (lambda: SOC2d(6, 2, (3, 5), padding_mode="circular", dilation=(2, 1)), (6, 4, 3)),
    "even kernel": (lambda: SOC2d(2, 2, 2, series="taylor", eval_degree=7), (2, 1, 3)),
}


@pytest.mark.parametrize("name", AFFINE)
def test_a_linear_layer_is_evaluated_as_it_is_and_certified_below_the_exact_distance(name):
    build, shape = AFFINE[name]
    layer = build().double()
    features = layer(torch.zeros(1, *shape, dtype=torch.float64)).numel()
    model = nn.Sequential(layer, nn.Flatten(), OrthogonalLinear(features, 3, dtype=torch.float64))
    certifier, images = assert_sound_if_affine(model, shape), torch.rand(3, *shape, dtype=torch.float64)
    assert float((certifier.logits(images) - in_float64(model)(images)).abs().max()) < 1e-13
    # A degree that is fixed too low costs radius, not soundness.
    assert certifier.lipschitz < 5


def largest_jacobian(layer: nn.Module, shape: tuple[int, ...], points: int = 3) -> float:
    """The largest norm of the layer's Jacobian in float64 at random points, small and large."""
    exact = in_float64(layer)
    norms = []
    for i in range(points):
        x = torch.randn(shape, dtype=torch.float64) * 10.0 ** (i - 1)
        jacobian = torch.autograd.functional.jacobian(lambda v: exact(v[None])[0].flatten(), x, vectorize=True)
        norms.append(float(torch.linalg.matrix_norm(jacobian.flatten(1), 2)))
    return max(norms)


# Filters for which the bounds are met, or nearly so: all of one sign (the sum at frequency zero), alternating signs
# (the highest frequency), one tap, one channel far larger than the others.
FILTERS = {
    "one sign": lambda shape: torch.rand(shape) + 0.5,
    "alternating": lambda shape: (
        (torch.rand(shape) + 0.5) * torch.tensor([1.0, -1.0, 1.0]).outer(torch.tensor([1.0, -1.0, 1.0]))
    ),
    "one tap": lambda shape: torch.zeros(shape).index_put_(
        (torch.tensor(0), torch.tensor(0), torch.tensor(2), torch.tensor(1)), torch.tensor(3.0)
    ),
    "far apart": lambda shape: torch.randn(shape) * torch.tensor([1e-12, 1e12]).view(1, 2, 1, 1),
    "equal": lambda shape: torch.ones(shape),
}


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("kind", KINDS)
def test_filters_at_the_edge_of_the_proof_do_not_expand(kind, name, padding_mode):
    torch.manual_seed(1)
    layer = kind(2, 2, 3, padding_mode=padding_mode)
    with torch.no_grad():
        filter_of(layer).copy_(FILTERS[name](filter_of(layer).shape))
    for side in (2, 3, 6):
        assert largest_jacobian(layer, (2, side, side)) <= 1 + 1e-13
    assert lipschitz_upper_bound(layer.eval(), (2, 8, 8)) <= 1.0


def exactly(tensor: Tensor) -> list[Fraction]:
    return [Fraction(float(value)) for value in tensor.detach().double().flatten()]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_what_is_stored_obeys_the_theorem_in_exact_arithmetic(dtype):
    """One channel and taps of one sign: the norm is the sum of the taps, with nothing left to rounding."""
    for seed in range(20):
        torch.manual_seed(seed)
        taps = (torch.rand(1, 1, 3, 3) + 0.01).to(dtype)
        aol, sll, cpl = (kind(1, 1, 3, padding_mode="circular", dtype=dtype).eval() for kind in KINDS)
        for layer in (aol, sll, cpl):
            filter_of(layer).data.copy_(taps)
        gain = sum(exactly(aol.weight))
        assert 1 - Fraction(1, 50) < gain <= 1
        norm = sum(exactly(taps))
        for layer in (sll, cpl):
            (scale,) = exactly(layer.scale)
            assert 1 - Fraction(1, 20) < scale * norm**2 <= 1


def test_the_scale_of_sll_obeys_the_theorem_in_exact_arithmetic_for_several_channels():
    torch.manual_seed(0)
    layer = SLL2d(3, 3, 3).eval()
    weight, scale, (c, k) = layer.weight.detach(), exactly(layer.scale), (3, 3)
    taps = {place: Fraction(float(weight[place])) for place in np.ndindex(*weight.shape)}
    for i in range(c):
        total = Fraction(0)
        for j, a, b in product(range(c), range(1 - k, k), range(1 - k, k)):
            # A tap that is not there is zero.
            pairs = ((taps[i, m, u, v], taps.get((j, m, u + a, v + b), 0)) for m, u, v in np.ndindex(c, k, k))
            total += abs(sum(here * there for here, there in pairs))
        assert 1 - Fraction(1, 10**5) < scale[i] * total <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_filter_of_zeros_is_certified(kind):
    layer = kind(2, 2, 3)
    model = nn.Sequential(layer, nn.Flatten(), OrthogonalLinear(32, 4))
    images, labels = torch.rand(3, 2, 4, 4), torch.tensor([0, 1, 2])
    with torch.no_grad():
        filter_of(layer)[0].zero_()
        assert bool(torch.isfinite(layer.eval()(images)).all())
        filter_of(layer).zero_()
    assert largest_jacobian(layer, (2, 4, 4)) <= 1.0
    assert bool((radii(model, images, labels) >= 0).all())
