"""A config can be kept, read back, changed by flags, and is left in the folder of a run, where results go too."""

import io
import json
from pathlib import Path

import pytest

from skewconv import cli
from skewconv.config import TrainConfig, to_dict
from skewconv.errors import ArgumentError
from skewconv.train.paths import FILE, describe_run, read_config, results_folder
from skewconv.train.presets import PRESETS, preset, recipe

KEPT = """
data = "cifar10"
minutes = 5

[model]
width = 8

[optim]
schedule = "steps"
milestones = [0.5]
"""


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert cli.main(["train", *words, "--print-config"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("config", [recipe("digits"), preset(sorted(PRESETS)[0])], ids=["digits", "a preset"])
def test_what_a_run_leaves_is_read_back_as_it_was(tmp_path: Path, config: TrainConfig) -> None:
    describe_run(tmp_path, config, ["train", "--data", "a b"])
    assert read_config(tmp_path) == config
    assert read_config(tmp_path / "config.json") == config
    assert "skewconv train --data 'a b'" in (tmp_path / "README.md").read_text()


def test_the_record_of_a_run_is_a_config_too(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    file.write_text(json.dumps({"config": to_dict(recipe("cifar10")), "results": {}}))
    assert read_config(file) == recipe("cifar10")


def test_what_a_toml_file_leaves_out_is_as_in_the_recipe(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(KEPT)
    config = read_config(file)
    assert (config.data, config.minutes, config.epochs, config.model.width) == ("cifar10", 5.0, None, 8)
    assert config.optim.milestones == (0.5,)
    assert config.regime == recipe("cifar10").regime


def test_flags_change_the_config_of_a_file_and_what_is_printed_can_be_read(tmp_path: Path, capsys) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(KEPT)
    found = printed(capsys, "--config", str(file), "--width", "12", "--epochs", "3")
    assert (found["model"]["width"], found["data"], found["epochs"], found["minutes"]) == (12, "cifar10", 3, None)
    again = tmp_path / "again.json"
    again.write_text(json.dumps(found))
    assert printed(capsys, "--config", str(again)) == found


def test_what_is_printed_can_be_piped_back(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    first = printed(capsys, "--width", "12", "--epochs", "3")
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(first)))
    assert printed(capsys, "--config", "-") == first


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.toml", "width = ", "is not TOML"),
        ("a.json", "{", "is not JSON"),
        ("a.json", "[]", "holds no config"),
        ("a.toml", "[model]\nwidht = 8", "the table 'model' of a config has no 'widht': did you mean 'width'"),
        ("a.toml", "[model]\nwidth = 7", "width"),
    ],
)
def test_a_bad_file_is_refused_by_its_name(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ArgumentError, match=words) as caught:
        read_config(tmp_path / name)
    assert name in str(caught.value)


def test_a_missing_file_and_two_origins_are_refused(tmp_path: Path, capsys) -> None:
    assert cli.main(["train", "--config", str(tmp_path / "none.toml"), "--print-config"]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert cli.main(["train", "--config", "x.toml", "--preset", sorted(PRESETS)[0], "--print-config"]) == 2
    assert "choose one" in capsys.readouterr().err


def test_results_go_to_the_folder_of_the_run_or_to_one_that_can_be_made(tmp_path: Path) -> None:
    assert results_folder(tmp_path / FILE, None) == tmp_path
    assert results_folder(tmp_path / FILE, tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ArgumentError, match=r"^--out is .*file.*which cannot be made a folder"):
            results_folder(tmp_path / FILE, out)
