"""Predictions without labels agree with the certificates that are made with them."""

import copy
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from skewconv.certify import Certifier, certify_dataset, predict, radii
from skewconv.certify.predict import in_words, rounded_down
from skewconv.errors import ArgumentError


def test_radii_are_those_of_the_certificates_for_the_predicted_class_and_margins_are_read_off_the_logits(digits):
    found = predict(digits.model, digits.images[:40])
    assert torch.equal(found.classes, found.logits.argmax(1))
    torch.testing.assert_close(found.radii, radii(digits.model, digits.images[:40], found.classes), rtol=1e-9, atol=0)
    assert (found.radii > 0).all()
    best = found.logits.topk(2, dim=1)
    assert torch.equal(found.runners_up, best.indices[:, 1])
    assert torch.equal(found.margins, best.values[:, 0] - best.values[:, 1])
    in_parts = predict(Certifier(digits.model, (1, 8, 8)), digits.images[:10], batch_size=3)
    assert torch.equal(found.classes[:10], in_parts.classes)
    torch.testing.assert_close(found.radii[:10], in_parts.radii, rtol=1e-9, atol=0)
    with pytest.raises(ArgumentError, match="batch_size must be an integer >= 1, got 0"):
        predict(digits.model, digits.images[:2], batch_size=0)


def test_the_deciding_rival_need_not_be_the_runner_up():
    # Class 1 is next in logits, but points nearly the same way as class 0, so it takes a long way to overtake it.
    weight = torch.tensor([[1.0, 0.0], [math.cos(0.1), math.sin(0.1)], [-1.0, 0.0]])
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 3, bias=False))
    model[1].weight.data = weight
    found = predict(Certifier(model, (1, 2), input_range=None), torch.tensor([[[0.05, -0.5]]]))
    assert found.classes.tolist() == [0]
    assert found.runners_up.tolist() == [1]
    assert found.rivals.tolist() == [2]
    gaps = found.logits[0, 0] - found.logits[0, 1:]
    distances = gaps / torch.linalg.vector_norm(weight.double()[0] - weight.double()[1:], dim=1)
    torch.testing.assert_close(found.rival_radii[0, 1:], distances, rtol=1e-6, atol=0)
    assert found.rival_radii[0, 0] == math.inf


def test_what_certificates_measured_serves_the_weights_they_are_of_and_no_others(digits):
    model, images = copy.deepcopy(digits.model), digits.images[:5]
    found = certify_dataset(model, digits.images[:60], digits.labels[:60])
    results = found.results()
    alone = predict(model, images, float32=True)
    assert alone.below is None
    vars(model)["certified_results"] = results
    beside = predict(model, images, float32=True)
    assert torch.equal(beside.radii, alone.radii)  # repeated: never taken from a record
    assert beside.slack.clean_images == 60 != alone.slack.clean_images
    every = predict(digits.model, digits.images[:60]).radii
    shares = (every < beside.radii[:, None]).double().mean(1)
    torch.testing.assert_close(beside.below, shares, rtol=0, atol=0.03)
    row = beside.rows([str(n) for n in range(10)], 1)[0]
    assert row["place"].endswith("of those of the test images")
    assert torch.equal(predict(Certifier(model, (1, 8, 8)), images).below, beside.below)
    for edit in (
        {"prediction_radii": ["many"] * 101},
        {"prediction_radii": 3},
        {"weights_sha256": "0" * 64},
        {"images": 9},
    ):
        vars(model)["certified_results"] = {**results, **edit}
        assert predict(model, images).below is None
    for value in (-1.0, math.inf, "small", None):
        slack = {**results["float32_slack"], "logits": value}
        vars(model)["certified_results"] = {**results, "float32_slack": slack}
        assert predict(model, images, float32=True).slack == alone.slack
    vars(model)["certified_results"] = results
    model.head.bias.data[0] += 1e-3
    assert predict(model, images).below is None


@given(st.floats(min_value=1e-12, max_value=1e6))
def test_a_radius_in_words_claims_no_more_than_the_radius(radius):
    assert Fraction(rounded_down(radius)) <= Fraction(radius)
    assert float(rounded_down(radius)) >= 0.99 * radius
    words = in_words(radius)
    assert f"shorter than {rounded_down(radius)} in l2" in words
    if "for example" in words:
        assert int(words.partition("example ")[2].partition("/255")[0]) / 255 <= radius


@given(st.integers(1, 255), st.floats(0, 1e-6))
def test_what_is_said_of_one_pixel_holds_for_all_of_its_channels(levels, more):
    radius = levels / 255 * 3**0.5 + more
    said = int(in_words(radius, 3).partition("example ")[2].partition("/255")[0] or 0)
    assert said / 255 * 3**0.5 < radius
    assert "from black to white" not in in_words(3**0.5, 3)
    assert "from black to white" in in_words(1.74, 3)


def test_words_for_radii_that_are_no_numbers_of_levels():
    assert in_words(0.0).startswith("nothing is proven")
    assert "less than 1/255" in in_words(0.002)
    assert "from black to white" in in_words(1.5)
    assert in_words(math.inf) == "no change at all can alter this"
