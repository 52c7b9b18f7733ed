"""Models on which certifiers of the literature, or estimates in the place of proofs, give radii that do not hold.

A case takes a function (model, images, labels) -> radii, and fails by an assertion if a radius is too large. Where the
model is affine, the judge is the exact distance to the boundary, in rational numbers. Each case holds for this
certifier, and fails for a copy with one safeguard removed. A case without a source is our own construction.
"""

import inspect
import types
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from skewconv.certify import RoundingSearch, attack_certificates, certifier, certify_dataset, radii
from skewconv.nn import Normalize, OrthogonalLinear, SOC2d
from skewconv.nn.bounds import lipschitz_bound
from skewconv.ops.polynomials import Polynomial
from tests.certify.oracles import assert_no_radius_reaches_an_exact_boundary, boundary_distances, in_float64

Certify = Callable[[nn.Module, Tensor, Tensor], Tensor]


def linear(inputs: int = 16, classes: int = 4, *, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes, dtype=dtype)).requires_grad_(False)


def predicted(model: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return in_float64(model)(images.double()).argmax(1)


def assert_sound(model: nn.Sequential, images: Tensor, certify: Certify, *, some: bool = True) -> None:
    labels = predicted(model, images)
    found = certify(model, images, labels)
    assert not some or bool((found > 0).any())
    assert_no_radius_reaches_an_exact_boundary(model[1].weight, model[1].bias, images, labels, found)


def assert_within_distances(model: nn.Module, images: Tensor, certify: Certify) -> None:
    labels = predicted(model, images)
    found = certify(model, images, labels)
    assert bool((found <= boundary_distances(model, images, labels) * (1 + 1e-9)).all())


def large_biases(certify: Certify) -> None:
    """Biases of 4e6, equal for all classes: the margin is left over from a cancellation that rounds it.

    Source: after the adversarially biased models of Murray, "Lipschitz-based robustness certification under
    floating-point execution", 2026 (arXiv 2603.13334), against the verified certifier of Tobler, Syeda, Murray, "A
    formally verified robustness certifier for neural networks", CAV 2025. This model is our own.
    """
    model = linear(classes=3)
    model[1].bias.fill_(4e6)
    model[1].weight.mul_(2.0**-20)
    torch.manual_seed(1)
    assert_sound(model, torch.rand(40, 1, 4, 4, dtype=torch.float64), certify)


def vanishing_weights(certify: Certify) -> None:
    """Weights of 1e-5 and of 2^-560: an epsilon makes a bound too small, and squares that underflow make it zero.

    Source: issue 8 of github.com/klasleino/gloro (Murray, 2025): weights of 1e-5, whose norm is taken for 9.4e-6
    because an epsilon stands in the normalisation of power iteration. Bounds of zero, and with them infinite radii, are
    our own construction.
    """
    for size in (1e-5, 2.0**-560):
        model = linear()
        model[1].bias.zero_()
        model[1].weight.mul_(size)
        torch.manual_seed(1)
        assert_sound(model, torch.rand(10, 1, 4, 4, dtype=torch.float64), certify)


def overflowing_margins(certify: Certify) -> None:
    """Finite logits whose difference is not: infinity is no margin, and the boundary is at the distance two."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False, dtype=torch.float64)).requires_grad_(False)
    model[1].weight.copy_(torch.tensor([[4.25e307], [-4.25e307]], dtype=torch.float64).expand(2, 4))
    assert_sound(model, torch.ones(1, 1, 2, 2, dtype=torch.float64), certify, some=False)


def ties_at_minus_infinity(certify: Certify) -> None:
    """A class that is minus infinity ties with another that is, and a margin of infinity is no margin.

    Source: issue 9 of github.com/klasleino/gloro (Murray, 2025), the code of Leino, Wang, Fredrikson, "Globally-robust
    neural networks", 2021: logits equal to the largest are all replaced by minus infinity, and a tie is certified.
    Biases of minus infinity are our own construction.
    """
    model = linear(classes=3)
    model[1].bias[1:] = -torch.inf
    images = torch.rand(4, 1, 4, 4, dtype=torch.float64)
    for label in (1, 2):
        assert float(certify(model, images, torch.full((4,), label)).abs().max()) == 0.0
    same = linear(classes=3)
    same[1].weight[1], same[1].bias[1] = same[1].weight[0], same[1].bias[0]
    same[1].bias[2] -= 100
    for label in (0, 1, 2):
        assert float(certify(same, images, torch.full((4,), label)).abs().max()) == 0.0


def unequal_deviations(certify: Certify) -> None:
    """Two channels, divided by 0.05 and by 2: the larger deviation is not the one that counts."""
    torch.manual_seed(2)
    model = nn.Sequential(Normalize(0.5, (0.05, 2.0)), SOC2d(2, 2, 3), nn.Flatten(), OrthogonalLinear(32, 4))
    assert_within_distances(model, torch.rand(8, 2, 4, 4), certify)


def expansive_polynomial(certify: Certify) -> None:
    """Two terms of the exponential stretch by up to 3.6: a layer is not orthogonal because its filter is skew.

    Source: Singla, Feizi, "Improved techniques for deterministic l2 robustness", 2022, who say of truncated
    exponentials that their Lipschitz constants are above one, and multiply by estimates of them. The degree is ours.
    """
    torch.manual_seed(2)
    layer = SOC2d(2, 2, 1, series="taylor", eval_degree=1, norm_bound=3.5)
    model = nn.Sequential(layer, nn.Flatten(), OrthogonalLinear(32, 4))
    assert_within_distances(model, torch.rand(8, 2, 4, 4), certify)


def opposite_logits(certify: Certify) -> None:
    """Orthonormal rows: one logit rises while another falls, so the margin moves sqrt(2) times as fast as a logit.

    Source: radii of margin / Lip in the place of margin / (sqrt(2) Lip); see Tsuzuku, Sato, Sugiyama, "Lipschitz-margin
    training", 2018, Proposition 1.
    """
    torch.manual_seed(3)
    model = nn.Sequential(nn.Flatten(), OrthogonalLinear(16, 4))
    assert_within_distances(model, torch.rand(8, 1, 4, 4), certify)


def roundings_at_the_boundary(certify: Certify) -> None:
    """196 -> 10 linear models, searched among the floats around the boundary, in the certified float64 program.

    Source: Jin, Ohrimenko, Rubinstein, "Getting a-round guarantees: floating-point attacks on certified robustness",
    2022, whose search this is.
    """
    model = linear(196, 10, dtype=torch.float32)
    torch.manual_seed(1)
    images = torch.rand(20, 1, 14, 14)
    labels = predicted(model, images)
    found = certify(model, images, labels)
    search = RoundingSearch(rivals=1, neighbours=30)
    report = attack_certificates(model, images, labels, found, search, fraction=1.0, arithmetic="float64")
    assert report.violations == ()
    assert_no_radius_reaches_an_exact_boundary(model[1].weight, model[1].bias, images, labels, found)


CASES: dict[str, Callable[[Certify], None]] = {
    case.__name__: case
    for case in (
        *(large_biases, vanishing_weights, overflowing_margins, ties_at_minus_infinity, unequal_deviations),
        *(expansive_polynomial, opposite_logits, roundings_at_the_boundary),
    )
}


@pytest.mark.parametrize("name", CASES)
def test_the_gallery_holds(name):
    CASES[name](radii)


def copy_of_the_certifier(kept: str, put: str) -> Certify:
    """radii() of a copy of the certifier's module in which one piece of text is replaced; it must be there once."""
    source = inspect.getsource(certifier)
    assert source.count(kept) == 1, f"{kept!r} is in the certifier {source.count(kept)} times: mend the planted fault"
    module = types.ModuleType("certifier_with_a_fault")
    exec(compile(source.replace(kept, put), "certifier_with_a_fault", "exec"), module.__dict__)
    found: Certify = module.radii
    return found


# What is taken away: a piece of the certifier and what stands in its place, and the case that notices.
TEXT_FAULTS = {
    "rounding term": (
        "numerators = gaps * _QUOTIENT_DOWN - lost[:, None]",
        "numerators = gaps * _QUOTIENT_DOWN",
        "large_biases",
    ),
    "tie rule": (
        "sound = torch.isfinite(logits).all(1) & (gaps.amin(1) > 0) & (radii.amin(1) > 0)",
        "sound = radii.amin(1) > -math.inf",
        "ties_at_minus_infinity",
    ),
    "pair bound": (
        "bound = (self.classes, self.classes), self.lipschitz * _ROOT_TWO",
        "bound = (self.classes, self.classes), self.lipschitz",
        "opposite_logits",
    ),
    "margins that overflow": (
        "torch.minimum(radii, ((self.reach - norms) * _QUOTIENT_DOWN)[:, None])",
        "radii",
        "overflowing_margins",
    ),
    "scaled norms": (
        "2 * vector_norm_up(matrix / 2 - row / 2, safety=2)",
        "torch.linalg.vector_norm(matrix - row, dim=1)",
        "vanishing_weights",
    ),
}


@pytest.mark.parametrize("fault", TEXT_FAULTS)
def test_a_case_fails_without(fault):
    kept, put, case = TEXT_FAULTS[fault]
    faulty = copy_of_the_certifier(kept, put)
    with pytest.raises(AssertionError):
        CASES[case](faulty)


# What is taken away from what the certifier stands on: an attribute, what stands in its place, and the case.
_LARGEST_DEVIATION = {**lipschitz_bound.registry, Normalize: lambda module, shape: 1 / float(module.std.max())}
OTHER_FAULTS = {
    "gain": (Polynomial, "gain", property(lambda self: (1.0, 1.0)), "expansive_polynomial"),
    "smallest deviation": (lipschitz_bound, "registry", _LARGEST_DEVIATION, "unequal_deviations"),
}


@pytest.mark.parametrize("fault", OTHER_FAULTS)
def test_a_case_fails_without_what_the_certifier_stands_on(fault, monkeypatch):
    *place, case = OTHER_FAULTS[fault]
    monkeypatch.setattr(*place)
    with pytest.raises(AssertionError):
        CASES[case](radii)


def test_no_prediction_in_float32_changes_within_the_radius_for_float32():
    """The float32 network is another function than the certified one, and has a radius of its own.

    Source: Jin, Ohrimenko, Rubinstein, 2022, and Murray, 2026: float32 counterexamples just inside radii that were
    computed as if in real arithmetic. Within the radius of the float64 program some images flip here too.
    """
    model = linear(196, 10, dtype=torch.float32)
    torch.manual_seed(1)
    images = torch.rand(60, 1, 14, 14)
    labels = predicted(model, images)
    found = certify_dataset(model, images, labels)
    assert bool((found.radius_float32 > 0).any())
    search = RoundingSearch(rivals=1, neighbours=40)
    flips = {}
    for name, claimed in (("float64", found.radius), ("float32", found.radius_float32)):
        report = attack_certificates(model, images, labels, claimed, search, fraction=1.0, arithmetic="model")
        assert report.violations == ()
        flips[name] = len(report.flips)
    assert flips["float64"] > 0
    assert flips["float32"] == 0
