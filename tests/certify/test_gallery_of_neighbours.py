"""Attempts to break the certificates of AOL, SLL and CPL: filters at the edge of their proof, and what may be stale."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from skewconv.certify import radii
from skewconv.errors import NotFiniteError
from skewconv.nn import AOL2d, CPL2d, Normalize, OrthogonalLinear, SLL2d
from skewconv.nn.lowering import lipschitz_upper_bound
from tests.certify.oracles import in_float64

KINDS = [AOL2d, SLL2d, CPL2d]
SHAPE = (2, 4, 4)


def filter_of(layer: nn.Module) -> nn.Parameter:
    return layer.raw_weight if isinstance(layer, AOL2d) else layer.weight


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
def test_a_filter_of_zeros_is_certified_and_one_that_is_not_finite_refused(kind):
    layer = kind(2, 2, 3)
    model = nn.Sequential(Normalize(0.5, 0.3), layer, nn.Flatten(), OrthogonalLinear(32, 4))
    images, labels = torch.rand(3, *SHAPE), torch.tensor([0, 1, 2])
    with torch.no_grad():
        filter_of(layer)[0].zero_()
        assert bool(torch.isfinite(layer.eval()(images)).all())
        filter_of(layer).zero_()
    assert largest_jacobian(layer, SHAPE) <= 1.0
    assert bool((radii(model, images, labels) >= 0).all())
    with torch.no_grad():
        filter_of(layer)[0, 0, 0, 0] = float("nan")
    with pytest.raises(NotFiniteError):
        radii(model, images, labels)
