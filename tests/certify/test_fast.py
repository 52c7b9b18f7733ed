"""Fast certificates: of the network frozen at a tolerance, float64 only where something can be proven."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import skewconv.nn.soc.lowered
from skewconv.certify import Certifier, certify_dataset, check_certificates, check_in_balls
from skewconv.certify.certificates import Certificates, certified_function
from skewconv.errors import ArgumentError
from skewconv.frozen import freeze
from skewconv.models import LipConvnet
from skewconv.records import write_record

TOL = 1e-3


@pytest.fixture(scope="module", params=["matrices", "convolutions"])
def subject(request: pytest.FixtureRequest) -> Iterator[tuple[LipConvnet, Tensor, Tensor, Certificates]]:
    """A model whose frozen layers are matrices, or keep their convolutions; every second label is right."""
    torch.manual_seed(0)
    model = LipConvnet(5, in_channels=1, input_size=8, width=2).eval()
    images = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        labels = model(images).argmax(1)
    labels[::2] = (labels[::2] + 1) % 10
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "convolutions":
            patch.setattr(skewconv.nn.soc.lowered, "_MATRIX_BYTES", 0)
        kinds = {type(module).__name__ for module in freeze(model, (1, 8, 8), tol=TOL).modules()}
        assert ("SkewExponential" in kinds) == (request.param == "convolutions")
        yield model, images, labels, certify_dataset(model, images, labels, fast_tol=TOL)


def test_fast_radii_are_those_of_the_frozen_network_where_it_is_right(subject):
    model, images, labels, found = subject
    whole = certify_dataset(freeze(model, (1, 8, 8), tol=TOL), images, labels)
    torch.testing.assert_close(found.radius, whole.radius)
    torch.testing.assert_close(found.margin, whole.margin, atol=1e-5, rtol=0)
    assert torch.equal(found.prediction, whole.prediction)
    assert (found.radius > 0).tolist() == [False, True] * 6
    assert found.facts["function"] == {"kind": "frozen", "tol": TOL}
    assert "frozen" in found.facts["method"]


def test_fast_radii_differ_from_the_networks_own_by_the_tolerance(subject):
    model, images, labels, found = subject
    own = certify_dataset(model, images, labels)
    # Logits move by the tolerance times the norm of the normalised image, at the most.
    most = 2 * TOL * float(((images - model.body[0].mean) / model.body[0].std).flatten(1).norm(dim=1).max())
    assert float((found.radius - own.radius).abs().max()) <= most


def test_images_that_are_wrong_in_float32_are_not_evaluated_in_float64(subject, monkeypatch):
    model, images, labels, _ = subject
    evaluated = []
    logits = Certifier.logits

    def counting(self: Certifier, batch: Tensor) -> Tensor:
        evaluated.append(batch)
        return logits(self, batch)

    monkeypatch.setattr(Certifier, "logits", counting)
    certify_dataset(model, images, labels, fast_tol=TOL)
    assert sum(len(batch) for batch in evaluated) == 6 + 6  # clean, and where an attack has put them
    assert torch.equal(evaluated[0], images[1::2].double())


def test_both_judges_hold_a_fast_table_against_the_frozen_network(subject, tmp_path: Path):
    pytest.importorskip("flint")
    model, images, labels, found = subject
    record = found.write(tmp_path)
    assert check_certificates(tmp_path, model, images, labels).problems == ()
    report = check_in_balls(tmp_path, model, images, labels, [0, 1, 3])
    assert report.problems == ()
    assert 0.99 < report.largest_ratio <= 1
    # The radii are not claimed for the network as it was trained, nor for one frozen at another tolerance.
    text = (tmp_path / "certificates.csv").read_text()
    (tmp_path / "certificates.csv").write_text(
        text.replace(repr(float(found.radius[1])), repr(float(found.radius[1]) * 1.001))
    )
    assert not check_certificates(tmp_path, model, images, labels).sound
    assert not check_in_balls(tmp_path, model, images, labels, [1]).sound
    (tmp_path / "certificates.csv").write_text(text)
    del record["results"]["function"]
    write_record(tmp_path / "certificates.json", record)
    assert not check_certificates(tmp_path, model, images, labels).sound


@pytest.mark.parametrize("kind", ["frozen", "thawed"])
@pytest.mark.parametrize("tol", [3.0, 0.0, float("nan"), "coarse"])
def test_a_record_does_not_choose_how_coarse_the_function_is(kind, tol):
    model = LipConvnet(5, in_channels=1, input_size=8, width=4)
    assert certified_function(model, (1, 8, 8), {}) is model
    with pytest.raises(ArgumentError, match="tolerance"):
        certified_function(model, (1, 8, 8), {"function": {"kind": kind, "tol": tol}})
