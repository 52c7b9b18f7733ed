"""The gallery of broken certificates holds for this certifier, and fails for each copy with a safeguard removed."""

import inspect
import types
from collections.abc import Callable

import pytest
import torch

from skewconv.certify import RoundingSearch, attack_certificates, certifier, certify_dataset, radii
from skewconv.nn import Normalize, eval_operator
from skewconv.nn.bounds import lipschitz_bound
from skewconv.ops.polynomials import Polynomial
from tests.certify.gallery_cases import CASES, Certify, linear, predicted


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


def _no_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Polynomial, "gain", property(lambda self: (1.0, 1.0)))


def _largest_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {**lipschitz_bound.registry, Normalize: lambda module, shape: 1 / float(module.std.max())}
    monkeypatch.setattr(lipschitz_bound, "registry", rules)


def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eval_operator, "fingerprint", lambda *tensors: ())


# What is taken away from what the certifier stands on.
OTHER_FAULTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "gain": (_no_gain, "expansive_polynomial"),
    "smallest deviation": (_largest_deviation, "unequal_deviations"),
    "cache key": (_no_key, "weights_changed_after_a_forward"),
}


@pytest.mark.parametrize("fault", OTHER_FAULTS)
def test_a_case_fails_without_what_the_certifier_stands_on(fault, monkeypatch):
    plant, case = OTHER_FAULTS[fault]
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        CASES[case](radii)


def test_a_copy_without_a_fault_passes():
    """The mechanism itself breaks nothing."""
    honest = copy_of_the_certifier("numerators = gaps", "numerators = gaps")
    CASES["large_biases"](honest)


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
