"""Attempts to pass off a certificate that does not hold: tables and records edited by hand."""

import copy
import csv
import json

import pytest
import torch

from skewconv.certify import certify_dataset, check_certificates
from skewconv.models import LipConvnet


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    torch.manual_seed(0)
    model, images = LipConvnet(5, in_channels=1, input_size=8, width=2).eval(), torch.rand(12, 1, 8, 8)
    with torch.no_grad():
        labels = model(images).argmax(1)
    labels[3] = (labels[3] + 1) % 10  # one that is wrong
    folder = tmp_path_factory.mktemp("certificates")
    certify_dataset(model, images, labels).write(folder)
    rows = list(csv.DictReader((folder / "certificates.csv").read_text().splitlines()))
    return model, images, labels, rows, json.loads((folder / "certificates.json").read_text())


@pytest.fixture
def check(certified, tmp_path):
    model, images, labels, rows, record = certified

    def run(edit_rows=lambda rows: rows, edit_results=lambda results: None):
        edited, told = edit_rows(copy.deepcopy(rows)), copy.deepcopy(record)
        edit_results(told["results"])
        with (tmp_path / "certificates.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(edited)
        (tmp_path / "certificates.json").write_text(json.dumps(told))
        return check_certificates(tmp_path, model, images, labels).problems

    return run


def changed(row: int, **values: str):
    def edit(rows):
        rows[row].update(values)
        return rows

    return edit


def test_honest_certificates_pass_in_any_order(check):
    assert check() == ()
    assert check(lambda rows: rows[::-1]) == ()


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (changed(0, radius_float64="9.0"), "radius 9.0"),
        (changed(0, radius_float64="inf"), "radius inf"),
        (changed(0, radius_float64="nan"), "radius nan"),
        (changed(0, radius_float64="-1.0"), "radius -1.0"),
        (changed(3, radius_float64="1e-6"), "radius 1e-06"),
        (changed(0, radius_float32="9.0"), "radius in float32"),
        (changed(0, label="11"), "label"),
        (changed(0, prediction="-1"), "prediction"),
        (changed(0, prediction="10"), "prediction"),
        (changed(0, margin="100.0"), "margin"),
        (changed(0, index="1"), "more than once"),
        (lambda rows: rows[1:], "11 certificates for 12 images"),
        (lambda rows: [*rows, rows[0]], "more than once"),
    ],
)
def test_an_edited_table_is_caught(check, edit, problem: str):
    assert any(problem in found for found in check(edit)), problem


def test_a_wrong_prediction_made_right_is_caught_though_it_has_no_radius(check, certified):
    label = str(int(certified[2][3]))
    assert "image 3: the prediction is another" in check(changed(3, prediction=label))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clean", 1.0),
        ("mean_radius", 2.0),
        ("images", 13),
        ("certified", {"1": 1.0}),
        ("certified", "all"),
        ("certified", {"1/0": 1.0}),
        ("certified_float32", {"3": 1.0}),
        ("certified", [1.0]),
        ("curve", []),
        ("lipschitz_upper_bound", 1.0),
        ("lipschitz_upper_bound", None),
        ("weights_sha256", "0" * 64),
        ("data_sha256", None),
    ],
)
def test_an_edited_record_is_caught(check, name: str, value):
    assert check(edit_results=lambda results: results.update({name: value})) != ()
    assert check(edit_results=lambda results: results.pop(name) and None) != ()


def test_a_small_radius_is_held_to_as_small_a_tolerance(tmp_path):
    model = torch.nn.Linear(2, 2).double().requires_grad_(False)
    model.weight.copy_(torch.eye(2))
    model.bias.zero_()
    images, labels = torch.tensor([[0.5 + 1e-12, 0.5], [0.7, 0.5]], dtype=torch.float64), torch.tensor([0, 0])
    found = certify_dataset(model, images, labels)
    found.write(tmp_path)
    assert check_certificates(tmp_path, model, images, labels).sound
    assert 0 < float(found.radius[0]) < 1e-12
    found.radius[0] = 1e-9
    found.write(tmp_path)
    problems = check_certificates(tmp_path, model, images, labels).problems
    assert any("image 0: radius 1e-09 is claimed" in problem for problem in problems)
