"""The code of the page on export runs, in Python and in JavaScript, on a file that was exported here."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from skewconv.export import onnx, open_file
from tests.export.networks import SHAPE, images, network

PAGE = Path(__file__).parents[2] / "docs" / "export.md"
SAID = re.compile(r"^class (\w+): no change shorter than ([\d.]+) can alter this$", re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the page speaks of: a network and images."""
    place = tmp_path_factory.mktemp("page")
    onnx(network("soc-zeros"), place / "digits.onnx", SHAPE, "0123456789", images=images())
    np.save(place / "images.npy", images(5).numpy())
    (place / "images.json").write_text(json.dumps(images(5).tolist()))
    return place


def wanted(folder):
    logits, radii = open_file(folder / "digits.onnx")(images(5))
    return [(str(int(label)), float(radius)) for label, radius in zip(logits.argmax(1), radii, strict=True)]


def run(command, folder):
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [(label, float(radius)) for label, radius in SAID.findall(done.stdout)]
    assert len(found) == 5, done.stdout
    for (label, shown), (right, radius) in zip(found, wanted(folder), strict=True):
        assert label == right
        assert radius - 2e-4 <= shown <= radius + 1e-6


def test_the_python_of_the_page_prints_class_and_radius(folder):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    run([sys.executable, "-c", code], folder)


def test_the_javascript_of_the_page_prints_the_same(folder):
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the JavaScript of docs/export.md was not run")
    there = [node, "-e", "require('onnxruntime-node')"]
    if subprocess.run(there, capture_output=True, check=False, cwd=folder).returncode:
        pytest.skip(
            "onnxruntime-node is not installed (npm install onnxruntime-node, and NODE_PATH=.../node_modules): the "
            "JavaScript of docs/export.md was not run"
        )
    (code,) = re.findall(r"```js\n(.*?)```", PAGE.read_text(), re.DOTALL)
    run([node, "-e", code], folder)
