"""Certificates on disk, on many devices, and checked: tables, records, weights and data edited by hand are caught."""

import copy
import csv
import json

import pytest
import torch
from torch import nn

from skewconv.certify import certify_dataset, check_certificates, data_hash, radii, weights_hash
from skewconv.certify.certificates import CertificateError, read_table
from skewconv.errors import ArgumentError
from skewconv.models import LipConvnet
from skewconv.records import read_record


@pytest.fixture(scope="module")
def certified(digits, tmp_path_factory):
    """Model, images, labels, certificates, and the folder they are in."""
    folder, images, labels = tmp_path_factory.mktemp("certificates"), digits.images[:60], digits.labels[:60].clone()
    labels[3] = (labels[3] + 1) % 10  # one that is wrong
    found = certify_dataset(digits.model, images, labels, batch_size=25)
    found.write(folder)
    return digits.model, images, labels, found, folder


def test_the_table_and_the_record_hold_what_was_certified(certified):
    model, images, labels, written, folder = certified
    table = read_table(folder / "certificates.csv")
    for name, column in table.items():
        assert torch.equal(column, getattr(written, name)), name  # moved
    # Batches of 25 and of 60 images take other kernels: equal up to the rounding of float64.
    torch.testing.assert_close(table["radius"], radii(model, images, labels), rtol=0, atol=1e-10)
    assert bool((table["radius"][table["label"] != table["prediction"]] == 0).all())
    record = read_record(folder / "certificates.json")
    results = record["results"]
    assert results["weights_sha256"] == weights_hash(model)
    assert results["data_sha256"] == data_hash(images, labels)
    assert record["versions"]["skewconv"]
    assert "float64" in results["method"]
    assert 0 < results["margin_subtracted_at_most"] < 1e-7
    assert list(results["certified"]) == ["36/255", "72/255", "108/255", "1"]
    assert results["clean"] >= results["certified"]["36/255"] > 0
    assert results["float32_slack"]["kind"] == "measured"
    assert 0 < results["float32_slack"]["largest_difference"] < 1e-4
    with pytest.raises(ArgumentError, match="0 images"):
        certify_dataset(model, images[:0], labels[:0])


def test_hashes_tell_any_two_apart():
    model = LipConvnet(5, in_channels=1, input_size=8, width=2)
    changed = copy.deepcopy(model)
    changed.body[1].bias.data[0] += 1e-6
    assert weights_hash(model) == weights_hash(copy.deepcopy(model))  # moved
    assert weights_hash(model) != weights_hash(changed)
    assert weights_hash(model) != weights_hash(copy.deepcopy(model).double())
    x, y = torch.rand(2, 3), torch.tensor([0, 1])
    assert data_hash(x, y) != data_hash(x, y.flip(0))
    assert data_hash(x, y) != data_hash(x.reshape(3, 2), y)


@pytest.fixture
def check(certified, tmp_path):
    model, images, labels, _, folder = certified
    rows = list(csv.DictReader((folder / "certificates.csv").read_text().splitlines()))
    record = json.loads((folder / "certificates.json").read_text())

    def run(edit_rows=lambda rows: rows, edit_results=lambda results: None, given=(model, images, labels)):
        edited, told = edit_rows(copy.deepcopy(rows)), copy.deepcopy(record)
        edit_results(told["results"])
        with (tmp_path / "certificates.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(edited)
        (tmp_path / "certificates.json").write_text(json.dumps(told))
        return check_certificates(tmp_path, *given).problems

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
        (lambda rows: rows[1:], "59 certificates for 60 images"),
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
        ("images", 61),
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
    model = nn.Linear(2, 2).double().requires_grad_(False)
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


def test_edited_weights_and_data_are_caught(certified, check, digits):
    model, images, labels, _, folder = certified
    edited = copy.deepcopy(model)
    edited.body[3].free.data[0, 0, 0] += 1e-3
    for word, given in (
        ("weights", (edited, images, labels)),
        ("data", (model, images.flip(0), labels)),
        ("label", (model, images, labels.flip(0))),
    ):
        assert any(word in problem for problem in check(given=given)), word
    more = torch.cat([images, digits.images[60:61]]), torch.cat([labels, digits.labels[60:61]])
    report = check_certificates(folder, model, *more)
    assert report.sound, "certificates of some images of a data set"
    assert report.checked == 60


def test_files_that_hold_no_certificates_are_refused(certified, tmp_path):
    model, images, labels, written, _ = certified
    written.write(tmp_path)
    file = tmp_path / "certificates.csv"
    text = file.read_text()
    for damaged in ("", "a,b\n", text.replace("index", "number"), text + "1,2,3\n", text + "1,2,x,0.5,0.5\n"):
        file.write_text(damaged)
        with pytest.raises(CertificateError):
            check_certificates(file, model, images, labels)
    with pytest.raises(CertificateError):
        read_table(tmp_path / "absent.csv")
    file.write_text(text)
    with pytest.raises(ArgumentError, match="do not fit"):
        check_certificates(file, model, images[:30], labels[:30])
    (tmp_path / "certificates.json").unlink()
    assert not check_certificates(tmp_path, model, images, labels).sound


class FakeFabric:
    """Two processes one after the other: the second gathers what the first left."""

    device, world_size = torch.device("cpu"), 2

    def __init__(self, rank: int, left: dict[tuple[int, int], torch.Tensor]) -> None:
        self.global_rank, self.left, self.calls = rank, left, 0

    def all_gather(self, table: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.left[self.global_rank, self.calls] = table
        return torch.stack([self.left.get((rank, self.calls), table) for rank in range(2)])


@pytest.mark.parametrize("count", [1, 7])
def test_shares_of_many_processes_come_back_in_order(count):
    model = LipConvnet(5, in_channels=1, input_size=8, width=2)
    images, labels = torch.rand(count, 1, 8, 8), torch.randint(0, 10, (count,))
    alone = certify_dataset(model, images, labels)
    left: dict[tuple[int, int], torch.Tensor] = {}
    certify_dataset(model, images, labels, batch_size=2, fabric=FakeFabric(0, left))
    together = certify_dataset(model, images, labels, batch_size=2, fabric=FakeFabric(1, left))
    torch.testing.assert_close(together.margin, alone.margin, rtol=0, atol=1e-12)
    torch.testing.assert_close(together.radius, alone.radius, rtol=0, atol=1e-12)
    assert torch.equal(together.prediction, alone.prediction)  # classes; no margin is within rounding of zero
    assert torch.equal(together.index, torch.arange(count))  # moved
