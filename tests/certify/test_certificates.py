"""Certificates on disk, on many devices, and checked."""

import copy

import pytest
import torch

from skewconv.certify import certify_dataset, check_certificates, data_hash, radii, weights_hash
from skewconv.certify.certificates import CertificateError, read_table
from skewconv.errors import ArgumentError
from skewconv.models import LipConvnet
from skewconv.records import read_record


@pytest.fixture
def written(digits, tmp_path):
    found = certify_dataset(digits.model, digits.images[:60], digits.labels[:60], batch_size=25)
    found.write(tmp_path)
    return found


def test_the_table_and_the_record_hold_what_was_certified(digits, written, tmp_path):
    table = read_table(tmp_path / "certificates.csv")
    for name, column in table.items():
        assert torch.equal(column, getattr(written, name)), name  # moved
    # Batches of 25 and of 60 images take other kernels: equal up to the rounding of float64.
    together = radii(digits.model, digits.images[:60], digits.labels[:60])
    torch.testing.assert_close(table["radius"], together, rtol=0, atol=1e-10)
    assert bool((table["radius"][table["label"] != table["prediction"]] == 0).all())
    record = read_record(tmp_path / "certificates.json")
    results = record["results"]
    assert results["weights_sha256"] == weights_hash(digits.model)
    assert results["data_sha256"] == data_hash(digits.images[:60], digits.labels[:60])
    assert record["versions"]["skewconv"]
    assert "float64" in results["method"]
    assert 0 < results["margin_subtracted_at_most"] < 1e-7
    assert list(results["certified"]) == ["36/255", "72/255", "108/255", "1"]
    assert results["clean"] >= results["certified"]["36/255"] > 0
    assert results["float32_slack"]["kind"] == "measured"
    assert 0 < results["float32_slack"]["largest_difference"] < 1e-4


def test_data_that_does_not_fit_is_refused(digits):
    with pytest.raises(ArgumentError, match="0 images"):
        certify_dataset(digits.model, digits.images[:0], digits.labels[:0])


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


def test_edited_weights_and_data_are_caught(digits, written, tmp_path):
    images, labels = digits.images[:60], digits.labels[:60]
    edited = copy.deepcopy(digits.model)
    edited.body[3].free.data[0, 0, 0] += 1e-3
    report = check_certificates(tmp_path, edited, images, labels)
    assert any("weights" in problem for problem in report.problems)
    report = check_certificates(tmp_path, digits.model, images.flip(0), labels)
    assert any("data" in problem for problem in report.problems)
    report = check_certificates(tmp_path, digits.model, images, labels.flip(0))
    assert any("label" in problem for problem in report.problems)
    report = check_certificates(tmp_path, digits.model, digits.images[:61], digits.labels[:61])
    assert report.sound, "certificates of some images of a data set"
    assert report.checked == 60
    (tmp_path / "certificates.json").unlink()
    assert not check_certificates(tmp_path, digits.model, images, labels).sound


def test_files_that_hold_no_certificates_are_refused(digits, written, tmp_path):
    file = tmp_path / "certificates.csv"
    text = file.read_text()
    for damaged in ("", "a,b\n", text.replace("index", "number"), text + "1,2,3\n", text + "1,2,x,0.5,0.5\n"):
        file.write_text(damaged)
        with pytest.raises(CertificateError):
            check_certificates(file, digits.model, digits.images[:60], digits.labels[:60])
    with pytest.raises(CertificateError):
        read_table(tmp_path / "absent.csv")
    file.write_text(text)
    with pytest.raises(ArgumentError, match="do not fit"):
        check_certificates(file, digits.model, digits.images[:30], digits.labels[:30])


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
