"""`skewconv export` as a person uses it."""

import json
import sys
from pathlib import Path

import pytest

from skewconv.export import open_file
from skewconv.train.run import eval_data, open_run

pytest.importorskip("onnxruntime")


@pytest.fixture(autouse=True)
def _cache(digits_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKEWCONV_CACHE", str(digits_run.parent / "cache"))


def test_a_run_becomes_a_file_and_a_person_reads_what_became_of_each_layer(digits_run, tmp_path, call):
    path = tmp_path / "digits.onnx"
    status, out, _ = call("export", digits_run, "--out", path, "--images", 40)
    assert status == 0
    for word in ("multiply-adds", "matrix", "body.1", "head", "slack for float32", "median radius", "MB"):
        assert word in out
    table, _, after = out.partition("card ")
    assert max(map(len, table.splitlines())) <= 80
    assert f"{tmp_path / 'MODEL.md'}" in after
    assert "accuracy of the trained network | split: test; images: 359; clean: " in (tmp_path / "MODEL.md").read_text()
    run = open_run(digits_run)
    images = eval_data(run, split="test", images=40).tensors()[0]
    opened = open_file(path)
    assert opened.metadata["labels"] == list(run.data.classes)
    logits, radius = opened(images)
    assert logits.shape == (40, 10)
    assert float(radius.max()) > 0.05


def test_json_holds_the_layers_and_what_the_file_says(digits_run, tmp_path, call):
    words = ("--to", "vanilla", "--out", tmp_path / "net.py", "--images", 20, "--weights", "float16", "--json")
    status, out, _ = call("export", digits_run, *words)
    results = json.loads(out)["results"]
    assert status == 0
    assert set(results["files"]) == {"net.py", "net.safetensors"}
    assert results["weights"] == "float16"
    assert results["agreement"]["images"] == 20
    assert {"layer", "form", "numbers", "multiply_adds"} == set(results["layers"][0])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "net.txt"], "a file of onnx ends in .onnx"),
        (["--out", "net.pt2", "--to", "torch-export", "--preprocess"], "--preprocess is True, but it is for --to onnx"),
        (["--out", "net.onnx", "--max-mb", "0"], "--max-mb is 0.0: it must be positive"),
    ],
)
def test_mistakes_are_told_in_one_line(words, message, digits_run, tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    status, _, err = call("export", digits_run, *words)
    assert status == 2
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_told_in_the_one_voice(digits_run, tmp_path, monkeypatch, call):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    status, _, err = call("export", digits_run, "--out", tmp_path / "net.onnx", "--images", 4)
    assert status == 2
    assert "onnxruntime is needed here" in err
    assert "pip install '.[export]'" in err
