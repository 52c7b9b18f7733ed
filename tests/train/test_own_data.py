"""Anyone's own pictures, for a network that is trained already: judged, named, listed when bad."""

import csv
import json
import math
import shlex
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import skewconv
from skewconv import cli
from skewconv.commands import train as command
from skewconv.records import read_record
from skewconv.train import recipe
from skewconv.train.data import DataError, Dataset, Split, load_dataset
from skewconv.train.run import open_run
from skewconv.train.session import fit_to_data
from tests.train.runs import StopAt


def draw(path: Path, count: int, *, size: int | tuple[int, int] = 8, seed: int = 0, level: int | None = None) -> Path:
    """Light pictures and dark ones, grey; or all of one level."""
    random = np.random.default_rng(seed)
    shape = (size, size) if isinstance(size, int) else size
    for name, least in (("dark", 0), ("light", 150)):
        (path / name).mkdir(parents=True)
        for number in range(count):
            pixels = least + random.integers(0, 100, shape) if level is None else np.full(shape, level)
            Image.fromarray(pixels.astype(np.uint8)).save(path / name / f"{number:02}.png")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a folder, its folder beside it; twenty pictures a class, fewer than a batch."""
    home = tmp_path_factory.mktemp("own")
    draw(home / "pictures", 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKEWCONV_CACHE", str(home / "cache"))
        words = ["train", "--data", f"folder:{home / 'pictures'}", "--width", "2", "--epochs", "4", "--quiet"]
        assert cli.main([*words, "--out", str(home / "run")]) == 0
    return home


@pytest.fixture
def home(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SKEWCONV_CACHE", str(trained / "cache"))
    return Path(shutil.copytree(trained, tmp_path / "home"))


def test_other_pictures_are_judged_by_every_command_and_named(home, call):
    other = draw(home / "other", 5, seed=1)
    status, out, _ = call("evaluate", home / "run", "--data", f"folder:{other}", "--json")
    assert status == 0
    evaluated = json.loads(out)["results"]
    assert (evaluated["split"], evaluated["data"], evaluated["images"]) == ("pictures", "folder:other", 10)
    status, out, _ = call("certify", home / "run", "--data", f"folder:{other}", "--out", other, "--json")
    assert status == 0
    certified = json.loads(out)["results"]
    assert certified["clean"] == evaluated["clean"]
    assert certified["certified"] == evaluated["certified"]
    with open(other / "certificates.csv", newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    assert [row["file"] for row in rows] == [f"{name}/{n:02}.png" for name in ("dark", "light") for n in range(5)]
    (other / "certificates.json").rename(home / "certificates.json")
    (other / "certificates.csv").rename(home / "certificates.csv")
    # The command that `certify` prints to go on with checks these certificates on the pictures that they are of.
    status, out, _ = call("certify", home / "run", "--data", f"folder:{other}", "--out", home)
    following = shlex.split(out.splitlines()[-1])
    assert f"folder:{other}" in following
    assert call(*following[following.index("certify") :])[0] == 0
    words = ("--data", f"folder:{other}", "--kind", "fgsm", "--epsilon", "0.1", "--out", home)
    assert call("attack", home / "run", *words)[0] == 0
    assert read_record(home / "attack-fgsm.json")["results"]["data"] == "folder:other"


def test_the_certificates_of_the_run_s_own_pictures_have_their_names(home, call):
    assert call("certify", home / "run")[0] == 0
    assert "dark/" in (home / "run" / "certificates.csv").read_text()
    assert read_record(home / "run" / "certificates.json")["results"]["split"] == "test"


def test_a_run_knows_its_folder_from_everywhere_and_where_it_has_moved(home, tmp_path, monkeypatch, call):
    pictures = draw(tmp_path / "drawn", 4)
    monkeypatch.chdir(tmp_path)
    words = ("--data", "folder:drawn", "--width", "2", "--epochs", "3", "--quiet", "--out", "run")
    with monkeypatch.context() as patch:
        patch.setattr(command, "display_for", lambda quiet: StopAt(1))
        assert call("train", *words)[0] == 128 + signal.SIGTERM
    assert open_run("run").config.data == f"folder:{pictures}"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    own = json.loads(call("evaluate", "../run", "--json")[1])["results"]
    pictures.rename(tmp_path / "moved")
    for words in (("evaluate", "../run"), ("certify", "../run"), ("export", "../run", "--to", "onnx", "--out", "x")):
        status, _, err = call(*words)
        assert status == 2
        assert f"were in {pictures}, which is not there: move the folder back, or name its new place with --data" in err
    _, out, _ = call("evaluate", "../run", "--data", f"folder:{tmp_path / 'moved'}", "--json")
    assert json.loads(out)["results"] == own
    words = ("--resume", "--data", "folder:../moved", "--quiet", "--out", "../run")
    assert call("train", *words)[0] == 0
    assert open_run("../run").config.data == f"folder:{tmp_path / 'moved'}"


def test_data_that_cannot_be_judged_is_refused(home, call):
    other = draw(home / "other", 2)
    (other / "light").rename(other / "bright")
    for words, reason in (
        (("--data", "cifar10"), "it must be folder:PATH"),
        (("--skip-bad",), "--skip-bad is for --data"),
        (("--data", "folder:nowhere"), "is not a folder"),
        (("--data", f"folder:{other}"), "the class 'bright', which the network does not know: it knows dark, light"),
    ):
        status, _, err = call("evaluate", home / "run", *words)
        assert (status, err.startswith("skewconv: "), err.count("\n"), reason in err) == (2, True, 1, True), err


def test_bad_files_are_listed_all_at_once_and_can_be_skipped(home, call, caplog):
    other = draw(home / "other", 4)
    (other / "dark" / "00.png").write_bytes(b"no picture")
    (other / "light" / "01.png").write_bytes((other / "light" / "02.png").read_bytes()[:60])
    status, _, err = call("evaluate", home / "run", "--data", f"folder:{other}")
    assert status == 2
    assert "2 files are in the way" in err
    assert "dark/00.png" in err
    assert "light/01.png" in err
    words = ("--data", f"folder:{other}", "--skip-bad", "--json")
    status, out, _ = call("evaluate", home / "run", *words)
    assert status == 0
    assert json.loads(out)["results"]["images"] == 6
    assert "dark/00.png" in caplog.text


def test_train_and_val_folders_are_taken_as_such(tmp_path):
    draw(tmp_path / "split" / "train", 3)
    draw(tmp_path / "split" / "val", 2)
    data = load_dataset(f"folder:{tmp_path / 'split'}", root=tmp_path / "cache")
    assert (len(data.train), len(data.test)) == (6, 4)
    assert data.test.files is not None
    assert data.test.files[0] == "val/dark/00.png"


def test_pictures_of_every_kind_are_decoded_or_refused_by_name(tmp_path):
    grey = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000
    Image.fromarray(grey).save(tmp_path / "deep.png")
    deep = skewconv.preprocess([tmp_path / "deep.png"], (1, 8, 8))
    torch.testing.assert_close(deep[0, 0], torch.from_numpy(np.rint(grey / 257)).float() / 255)
    Image.new("CMYK", (8, 8), (255, 0, 0, 0)).save(tmp_path / "print.jpg", quality=95)
    cyan = skewconv.preprocess([str(tmp_path / "print.jpg")], (3, 8, 8))
    assert cyan[0, 0].max() < 0.1 < 0.9 < cyan[0, 1].min()
    frames = [Image.new("L", (8, 8), level) for level in (0, 255)]
    frames[0].save(tmp_path / "film.gif", save_all=True, append_images=frames[1:])
    with pytest.raises(DataError, match=r"film.gif has 2 frames"):
        skewconv.preprocess([tmp_path / "film.gif"], (1, 8, 8))
    Image.fromarray(np.zeros((8, 8), np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(DataError, match=r"float.tif has pixels of the kind 'F': convert it to 8 or 16 bits a channel"):
        skewconv.preprocess([tmp_path / "float.tif"], (1, 8, 8))


@pytest.mark.parametrize(("height", "width"), [(96, 96), (28, 20), (9, 14)])
def test_pictures_of_any_size_are_trained_on(height, width, tmp_path, monkeypatch, call):
    monkeypatch.setenv("SKEWCONV_CACHE", str(tmp_path / "cache"))
    pictures = draw(tmp_path / "pictures", 4, size=(height, width))
    assert call("data", f"folder:{pictures}")[0] == 0
    words = ("--data", f"folder:{pictures}", "--width", "2", "--epochs", "2", "--quiet", "--out", tmp_path / "run")
    assert call("train", *words)[0] == 0
    assert open_run(tmp_path / "run").input_shape == (1, height, width)
    if height == 28:
        assert call("certify", tmp_path / "run")[0] == 0
        assert call("certify", tmp_path / "run", "--check", tmp_path / "run" / "certificates.csv")[0] == 0
        picture = next((pictures / "dark").iterdir())
        assert call("predict", tmp_path / "run", picture)[0] == 0


@pytest.mark.parametrize(("size", "level", "words"), [((1, 8), None, "1 x 8: a LipConvnet takes"), (8, 7, "colour")])
def test_data_refuses_what_train_would_refuse(size, level, words, tmp_path, monkeypatch, call):
    monkeypatch.setenv("SKEWCONV_CACHE", str(tmp_path / "cache"))
    pictures = draw(tmp_path / "pictures", 4, size=size, level=level)
    for line in (("data", f"folder:{pictures}"), ("train", "--data", f"folder:{pictures}", "--out", "run")):
        monkeypatch.chdir(tmp_path)
        status, _, err = call(*line)
        assert status == 2
        assert words in err
    assert not (tmp_path / "run").exists()


def of_size(data: Dataset, count: int) -> Dataset:
    """A dataset with this number of training images."""
    index = np.arange(count) % len(data.train)
    return replace(data, train=Split(data.train.images[index], data.train.labels[index]))


@pytest.mark.parametrize(
    ("images", "processes", "batch_size", "epochs"),
    [
        (20, 1, 8, 600),
        (323, 1, 32, 120),
        (323, 3, 30, 120),
        (1000, 1, 64, 80),
        (5000, 2, 128, 31),
        (50_000, 1, 128, 10),
    ],
)
def test_small_folders_are_trained_for_a_number_of_optimizer_steps(images, processes, batch_size, epochs, data):
    config, _ = fit_to_data(recipe("folder:x"), of_size(data, images), processes)
    assert (config.loading.batch_size, config.epochs) == (batch_size, epochs)
    steps = images // batch_size
    assert config.epochs == 10 or 1200 <= config.epochs * steps < 1200 + steps
    assert config.eval_every == math.ceil(120 / steps)


def test_what_is_asked_for_is_obeyed(data):
    asked = recipe("folder:x", epochs=3, batch_size=128, eval_every=2)
    assert fit_to_data(asked, of_size(data, 300))[0] == asked
    minutes, _ = fit_to_data(recipe("folder:x", minutes=5), of_size(data, 300))
    assert (minutes.epochs, minutes.minutes, minutes.loading.batch_size, minutes.eval_every) == (None, 5, 32, 14)
