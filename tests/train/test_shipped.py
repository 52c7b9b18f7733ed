"""Networks of the package: what ships is what was judged, and it loads by its name."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

import skewconv
from benchmarks import ship as shipping
from skewconv import cli
from skewconv.certify import radii
from skewconv.commands.explore import default_runs
from skewconv.records import read_record
from skewconv.report import collect
from skewconv.train import environment
from skewconv.train.checkpoint import Checkpoint
from skewconv.train.environment import FILE, shipped_names
from skewconv.train.run import open_run
from tests.train.runs import digits

ROOT = Path(__file__).parents[2]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def folder(reference: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny network of the digits, shipped as "cifar10" in a package folder of the test's own."""
    place = tmp_path / "shipped"
    opened = open_run(reference)
    shipping.ship(opened.checkpoint, opened.model, digits(cache), place, "cifar10")
    monkeypatch.setattr(environment, "SHIPPED", place)
    monkeypatch.setenv("SKEWCONV_CACHE", str(cache))
    monkeypatch.chdir(tmp_path)
    return place


def test_the_weights_that_ship_are_half_and_the_model_has_exactly_them(folder, reference):
    stored = Checkpoint(folder / "cifar10.safetensors")._group("model")
    trained, model = dict(open_run(reference).model.named_parameters()), skewconv.load("cifar10")
    assert not model.training
    for name, parameter in model.named_parameters():
        assert stored[name].dtype == torch.float16
        assert torch.equal(stored[name].float(), parameter)
        assert torch.equal(trained[name].half(), stored[name])


def test_the_record_holds_the_figures_of_the_stored_weights(folder, reference, cache):
    record = open_run("cifar10").record()
    results = record["results"]
    assert (record["kind"], results["sha256"]) == ("shipped", sha256(folder / "cifar10.safetensors"))
    assert results["bytes"] == (folder / "cifar10.safetensors").stat().st_size < (reference / FILE).stat().st_size
    assert results["before_rounding"] == open_run(reference).record()["results"]
    images, labels = (torch.from_numpy(each.copy()) for each in digits(cache).test.take(np.arange(359)))
    proven = radii(skewconv.load("cifar10"), images.float() / 255, labels)
    assert results["certified"]["36/255"] == pytest.approx(float((proven >= 36 / 255).double().mean()), abs=1e-12)


def test_evaluate_knows_it_by_its_name(folder, capsys):
    assert cli.main(["evaluate", "cifar10"]) == 0
    said = capsys.readouterr().out
    clean = read_record(folder / "cifar10.json")["results"]["clean"]
    assert f"{clean:.2%}" in said


def test_its_certificates_are_made_in_another_folder_and_checked_by_its_name(folder, tmp_path, capsys):
    assert cli.main(["certify", "cifar10", "--images", "5"]) == 2
    assert "cifar10 comes with the package: give --out" in capsys.readouterr().err
    assert cli.main(["certify", "cifar10", "--images", "5", "--out", "found"]) == 0
    said = capsys.readouterr().out
    assert "certificates of cifar10" in said
    assert "certify cifar10 --check found/certificates.csv" in said
    assert cli.main(["certify", "cifar10", "--check", "found/certificates.csv"]) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["cifar10.json", "cifar10.safetensors"]


def test_a_report_shows_it_by_its_name_with_its_record(folder):
    (facts,) = collect(["cifar10"])
    assert (facts.name, facts.record) == ("cifar10", read_record(folder / "cifar10.json"))
    assert not any("skewconv attack" in each for each in facts.missing)


def test_explore_takes_it_where_its_images_are_at_hand(folder):
    assert default_runs() == ["cifar10"]


def test_a_run_in_the_current_folder_goes_before_a_name(folder, reference):
    Path("cifar10").symlink_to(reference)
    assert open_run("cifar10").checkpoint.path == Path("cifar10") / FILE


def test_torch_hub_offers_the_networks(folder):
    model = torch.hub.load(str(ROOT), "cifar10", source="local")
    for mine, theirs in zip(model.parameters(), skewconv.load("cifar10").parameters(), strict=True):
        assert torch.equal(mine, theirs)
    fresh = torch.hub.load(str(ROOT), "lipconvnet", source="local", depth=5, width=2)
    assert fresh(torch.rand(1, 3, 32, 32)).shape == (1, 10)


def test_every_network_of_the_package_has_its_record():
    for name in shipped_names():
        weights = environment.SHIPPED / f"{name}.safetensors"
        results = read_record(environment.record_beside(weights))["results"]
        assert (results["sha256"], results["bytes"]) == (sha256(weights), weights.stat().st_size)
        assert weights.stat().st_size <= shipping.LARGEST_BYTES
        # Predictions state how their radii compare: the certificates are of these weights and this version.
        found = skewconv.predict(skewconv.load(name), torch.rand(1, *open_run(name).input_shape), float32=True)
        assert found.below is not None
        assert found.slack.clean_images == 1000
