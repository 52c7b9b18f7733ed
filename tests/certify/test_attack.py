"""Attacks evaluated: inside the ball, strong enough to break what is not certified, unable to break what is."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from skewconv.certify import (
    PGD,
    AutoAttack,
    RoundingSearch,
    attack_by_name,
    attack_certificates,
    fgsm,
    measure_tightness,
    radii,
)
from skewconv.errors import ArgumentError, ShapeError


@pytest.fixture(scope="module")
def certified(digits):
    images, labels = digits.images[:16], digits.labels[:16]
    return digits.model, images, labels, radii(digits.model, images, labels)


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("kind", ["pgd", "fgsm"])
def test_moved_images_stay_in_the_ball_and_in_the_box(certified, kind, norm):
    model, images, labels, _ = certified
    limits = torch.linspace(0.01, 0.5, len(images))
    attack = attack_by_name(kind, norm, **({"steps": 5} if kind == "pgd" else {}))
    moved = attack(model, images, labels, limits)
    assert float(moved.min()) >= 0
    assert float(moved.max()) <= 1
    delta = (moved - images).flatten(1)
    size = delta.norm(dim=1) if norm == "l2" else delta.abs().amax(1)
    assert bool((size <= limits * (1 + 1e-5)).all())
    assert bool((size > 0.3 * limits).all())


def test_pgd_finds_the_boundary_of_a_linear_model():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).requires_grad_(False)
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[1.0, 0, 0, 0], [0, 1.0, 0, 0]]))
        model[1].bias.zero_()
    images = torch.full((1, 1, 2, 2), 0.5)
    images[0, 0, 0, 0] = 0.6
    label, distance = torch.tensor([0]), 0.1 / 2**0.5
    for factor, wins in ((0.99, False), (1.01, True)):
        moved = PGD(steps=20)(model, images, label, torch.tensor([factor * distance]))
        assert (int(model(moved).argmax()) == 1) is wins
    assert int(model(fgsm(model, images, label, torch.tensor([1.01 * distance]), "l2")).argmax()) == 1


@pytest.mark.parametrize("arithmetic", ["model", "float64"])
def test_no_certificate_breaks_at_the_whole_radius(certified, arithmetic):
    for attack in (PGD(steps=30), RoundingSearch(neighbours=20)):
        report = attack_certificates(*certified, attack, fraction=1.0, arithmetic=arithmetic)
        assert report.violations == ()
        # The points are at the radius itself, unless the border of [0, 1] is nearer.
        assert report.mean_distance <= float(certified[3].mean())
        assert report.mean_distance > 0.9 * float(certified[3].mean())


def test_an_attack_counts_its_steps(certified):
    model, images, labels, found = certified
    attacked = int((found > 0).sum())
    assert attack_certificates(model, images, labels, found, PGD(steps=7, restarts=2)).steps == 2 * 8 * attacked
    search = RoundingSearch(rivals=1, linearisations=2, neighbours=3)
    assert attack_certificates(model, images, labels, found, search).steps == (1 + 2 + 1 + 3) * attacked


def test_the_rounding_search_breaks_radii_that_forget_rounding():
    """The largest float64 below margin / slope, as a certifier without rounding would state it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(196, 10)).requires_grad_(False)
    images = torch.rand(40, 1, 14, 14)
    matrix, bias = model[1].weight.double(), model[1].bias.double()
    z = images.double().flatten(1) @ matrix.T + bias
    labels = z.argmax(1)
    slopes = torch.linalg.vector_norm(matrix[labels][:, None] - matrix, dim=2)
    gaps = (z.gather(1, labels[:, None]) - z) / slopes
    naive = gaps.nan_to_num(torch.inf).amin(1)
    reports = {
        name: attack_certificates(model, images, labels, naive, RoundingSearch(), fraction=1.0, arithmetic=name)
        for name in ("model", "float64")
    }
    # In float32 the margin at the boundary is all rounding; in float64 it takes luck and neighbours.
    assert len(reports["model"].flips) >= 10
    assert len(reports["float64"].violations) >= 1


def test_tightness_is_one_where_the_certificate_is_the_truth():
    """For an affine model the radius is the distance to the boundary, but for rounding and the border of [0, 1]."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4)).requires_grad_(False)
    images = 0.25 + 0.5 * torch.rand(20, 1, 4, 4)
    labels = model(images).argmax(1)
    found = measure_tightness(model, images, labels, radii(model, images, labels))
    assert found.images == 20
    assert found.found == 20
    assert found.below == ()
    assert 1 < found.least <= found.median < 1.01
    # Radii twice too large are found out.
    assert len(measure_tightness(model, images, labels, 2 * radii(model, images, labels)).below) == 20


def test_no_certificate_breaks_under_autoattack(certified):
    report = attack_certificates(*certified, AutoAttack(queries=50, steps=5))
    assert report.violations == ()
    assert report.flips == ()
    assert report.robust_accuracy == report.certified_accuracy


@pytest.mark.parametrize("attack", [PGD(steps=40), AutoAttack(queries=20, steps=10)])
def test_radii_that_are_too_large_are_broken_listed_and_saved(certified, attack, tmp_path):
    model, images, labels, honest = certified
    claimed = honest.clone()
    best = int(honest.argmax())
    claimed[best] *= 6
    report = attack_certificates(model, images, labels, claimed, attack)
    assert [violation.index for violation in report.violations] == [best]
    violation = report.violations[0]
    assert violation.prediction != violation.label == int(labels[best])
    assert honest[best] < violation.distance <= claimed[best]
    paths = report.save(tmp_path)
    assert [path.name for path in paths] == [f"violation-{best}.npy"]
    saved = torch.from_numpy(np.load(paths[0]))
    assert int(model(saved[None].float()).argmax()) == violation.prediction
    assert report.results()["violations"][0]["index"] == best


def test_an_epsilon_for_all_counts_certified_images_at_it(certified):
    model, images, labels, found = certified
    epsilon = float(found[found > 0].median())
    report = attack_certificates(model, images, labels, found, PGD(steps=20), epsilon=epsilon)
    assert report.violations == ()
    assert report.certified_accuracy == float((found >= epsilon).double().mean())
    assert report.certified_accuracy <= report.robust_accuracy <= report.clean_accuracy
    large = attack_certificates(model, images, labels, found, PGD(steps=20), epsilon=3.0)
    assert large.robust_accuracy < 0.1
    assert large.violations == ()


def test_the_evaluation_trusts_no_attack(certified):
    model, images, labels, found = certified

    def breaks_the_model(victim, x, t, limits):
        for parameter in victim.parameters():
            parameter.data.zero_()
        victim.train()
        return x

    def far_away(victim, x, t, limits):
        return torch.rand_like(x) * 100 - 50

    for attack in (far_away, breaks_the_model, lambda victim, x, t, limits: torch.full_like(x, torch.nan)):
        report = attack_certificates(model, images, labels, found, attack)
        assert report.violations == ()
        assert report.robust_accuracy == report.clean_accuracy
        assert report.mean_distance <= float(found.mean())


@pytest.mark.parametrize(
    ("classes", "shape", "remarks"),
    [
        (2, (1, 8, 8), ["targeted APGD needs 4 classes, there are 2"]),
        (3, (1, 8, 8), ["targeted APGD needs 4 classes, there are 3"]),
        (4, (2, 4, 4), ["Square in l2 needs images of 5 x 5 pixels"]),
        (3, (1, 2, 6), ["targeted APGD needs 4 classes", "Square in l2 needs images of 5 x 5 pixels"]),
        (4, (1, 5, 5), []),
    ],
)
def test_autoattack_leaves_out_what_a_small_model_has_no_room_for_and_says_so(classes, shape, remarks):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))
    images = torch.rand(6, *shape)
    labels = model(images).argmax(1)
    honest, attack = radii(model, images, labels), AutoAttack(queries=20, steps=5)
    report = attack_certificates(model, images, labels, honest, attack)
    assert report.violations == ()
    assert len(report.remarks) == len(remarks)
    assert all(wanted in found for wanted, found in zip(remarks, report.remarks, strict=True))
    # What is left of it is still an attack. Two steps along the gradient of a linear model reach its boundary.
    assert len(attack_certificates(model, images, labels, 3 * honest, attack).violations) > 0


def test_autoattack_makes_as_many_steps_as_it_says(certified):
    """The package behind it makes ten by default, where the published attack makes a hundred."""
    model, images, labels, found = certified
    steps = [
        attack_certificates(model, images[:4], labels[:4], found[:4], AutoAttack(queries=1, steps=n)).steps
        for n in (2, 8)
    ]
    assert steps[1] > 2 * steps[0]


def test_arguments_that_make_no_attack_are_refused(certified):
    model, images, labels, found = certified
    for name, build in {
        "norm": lambda: PGD(norm="l1"),
        "steps": lambda: PGD(steps=0),
        "step_size": lambda: PGD(step_size=0.0),
        "kind": lambda: attack_by_name("cw"),
        "l2": lambda: attack_by_name("rounding", "linf"),
        "neighbours": lambda: RoundingSearch(neighbours=0),
    }.items():
        with pytest.raises(ArgumentError, match=name):
            build()
    for attack in (attack_certificates, PGD()):
        with pytest.raises(ShapeError):
            attack(model, images, labels, found[:3])
    with pytest.raises(ArgumentError, match=r"\[0, 1\]"):
        attack_certificates(model, images * 255, labels, found)
