"""`skewconv predict` on files, folders, and files that are none."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from skewconv.train.run import open_run


@pytest.fixture
def pictures(digits_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The first six test images as files."""
    monkeypatch.setenv("SKEWCONV_CACHE", str(digits_run.parent / "cache"))
    folder = tmp_path / "pictures"
    (folder / "more").mkdir(parents=True)
    for number, pixels in enumerate(open_run(digits_run).dataset().test.images[:6]):
        Image.fromarray(pixels[0]).save(folder / ("more" if number > 3 else "") / f"{number}.png")
    return folder


def test_a_folder_is_predicted_file_by_file_and_agrees_with_certify(digits_run, pictures, call):
    status, out, _ = call("predict", digits_run, pictures, "--json")
    rows = json.loads(out)
    assert status == 0
    assert [Path(row["file"]).name for row in rows] == [f"{number}.png" for number in range(6)]
    split = open_run(digits_run).dataset().test
    assert call("certify", digits_run, "--out", pictures)[0] == 0
    with open(pictures / "certificates.csv", newline="") as file:
        lines = [line for line in file if not line.startswith("#")]
    for row, certificate, label in zip(rows, csv.DictReader(lines), split.labels, strict=False):
        assert row["class"] == certificate["prediction"]
        assert row["arithmetic"] == "float64"
        if int(row["class"]) == label:
            assert row["radius"] == pytest.approx(float(certificate["radius_float64"]), rel=1e-9)
            assert row["margin"] == pytest.approx(float(certificate["margin"]), rel=1e-9)


def test_a_person_reads_a_table_with_meanings(digits_run, pictures, call):
    status, out, _ = call("predict", digits_run, pictures / "0.png")
    assert status == 0
    assert "pictures/0.png │" in out  # the end of a long path, in one piece
    assert "runner-up" in out
    assert "no change shorter than 0." in out
    assert "float64 arithmetic" in out
    assert max(map(len, out.splitlines()[:4])) <= 80


def test_another_size_is_refused_unless_resizing_is_asked_for(digits_run, pictures, call):
    pixels = np.asarray(Image.open(pictures / "0.png"))
    Image.fromarray(np.kron(pixels, np.ones((4, 4), np.uint8))).save(pictures / "large.png")
    status, _, err = call("predict", digits_run, pictures / "large.png")
    assert status == 2
    assert "large.png is 32 x 32 pixels, and the network takes 8 x 8" in err
    assert "--resize" in err
    status, out, _ = call("predict", digits_run, pictures / "large.png", "--resize", "--json")
    assert status == 0
    assert len(json.loads(out)) == 1


def test_every_bad_file_is_named_and_can_be_skipped(digits_run, pictures, call, caplog):
    (pictures / "text.png").write_text("no picture")
    (pictures / "empty.png").touch()
    status, _, err = call("predict", digits_run, pictures)
    assert status == 2
    assert "text.png cannot be read" in err
    assert "empty.png cannot be read" in err
    assert "--skip-bad" in err
    status, out, err = call("predict", digits_run, pictures, "--skip-bad", "--json")
    assert status == 0
    assert len(json.loads(out)) == 6
    assert caplog.text.count("left out: ") == 2


def test_what_makes_no_sense_is_said(digits_run, pictures, call, monkeypatch):
    monkeypatch.chdir(pictures)
    (pictures / "empty").mkdir()
    for words, said in (
        (["nowhere.png"], "nowhere.png does not exist"),
        ([], "IMAGE is missing"),
        (["empty"], "holds no pictures"),
    ):
        status, _, err = call("predict", digits_run, *words)
        assert status == 2
        assert said in err
