"""`skewconv import` makes a run that the other commands accept, or says why not, and leaves nothing behind."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

import skewconv
from skewconv.cli import main
from skewconv.foreign import ForeignWeightsError, read_state_dict
from skewconv.train.data import load_dataset
from tests.foreign import theirs


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with pictures of three classes, and a state dict as a trainer on several GPUs saves it."""
    folder = tmp_path_factory.mktemp("foreign")
    random = np.random.default_rng(0)
    for name in "abc":
        (folder / "pictures" / name).mkdir(parents=True)
        for number in range(5):
            pixels = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "pictures" / name / f"{number}.png")
    torch.manual_seed(0)
    state = {name: value.float().contiguous() for name, value in theirs.network_state(2).items()}
    wrapped = {"epoch": 3, "state_dict": {f"module.{name}": value for name, value in state.items()}}
    torch.save(wrapped, folder / "last.pth")
    safetensors.torch.save_file(state, folder / "last.safetensors")
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SKEWCONV_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _import(place: Path, out: Path, *words: str, file: str = "last.pth") -> int:
    return main(["import", str(place / file), "--out", str(out), "--data", f"folder:{place / 'pictures'}", *words])


def test_an_imported_run_is_evaluated_certified_and_checked(place, cache, tmp_path, capsys):
    run = tmp_path / "run"
    assert _import(place, run) == 0
    said = capsys.readouterr().out
    assert "LipConvnet-10, width 2, soc, maxmin" in said
    assert f"evaluate {run}" in said
    data = load_dataset(f"folder:{place / 'pictures'}", size=32, root=cache)
    images = torch.tensor(data.test.images).double() / 255
    state = {name: value.double() for name, value in read_state_dict(place / "last.pth").items()}
    with torch.no_grad():
        found = skewconv.load(run)(images.float())
    torch.testing.assert_close(found.double(), theirs.network(state, images), atol=1e-4, rtol=0)
    assert main(["evaluate", str(run), "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert results["lipschitz_upper_bound"] * 0.2507 == pytest.approx(1, abs=1e-5)
    assert main(["certify", str(run), "--quiet"]) == 0
    assert main(["certify", str(run), "--check", str(run / "certificates.csv"), "--quiet"]) == 0
    assert "every certificate holds" in capsys.readouterr().out
    # A run is never overwritten.
    assert _import(place, run) == 2
    assert "already holds a run" in capsys.readouterr().err


def test_files_are_read_without_wrappers_and_without_executing_them(place, tmp_path):
    one, other = read_state_dict(place / "last.pth"), read_state_dict(place / "last.safetensors")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pth")
    (tmp_path / "cut.pth").write_bytes((place / "last.pth").read_bytes()[:1000])
    torch.save([1, 2], tmp_path / "list.pth")
    for name, message in (
        ("module.pth", r"torch.save\(model.state_dict\(\), FILE\)"),
        ("cut.pth", "damaged"),
        ("list.pth", "this is a list"),
        ("", "is not a file"),
    ):
        with pytest.raises(ForeignWeightsError, match=message):
            read_state_dict(tmp_path / name)


def test_a_refusal_leaves_no_run(place, cache, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["import", str(place / "last.pth"), "--out", str(out)]) == 2
    assert "3 classes, neither 10 nor 100: give --data" in capsys.readouterr().err
    (place / "pictures" / "d").mkdir(exist_ok=True)
    Image.new("RGB", (32, 32)).save(place / "pictures" / "d" / "0.png")
    Image.new("RGB", (32, 32), "red").save(place / "pictures" / "d" / "1.png")
    assert _import(place, out) == 2
    assert "has images (3, 32, 32) and 4 classes: give the --data" in capsys.readouterr().err
    assert main(["import", str(place / "none.pth"), "--out", str(out)]) == 2
    assert "which is not a file" in capsys.readouterr().err
    assert not out.exists()
