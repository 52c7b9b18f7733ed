"""The code of the page on export runs, in Python and in JavaScript, on a file that was exported here."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from skewconv.export import onnx, open_file
from skewconv.train.data.images import preprocess
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


def python_of(first_line: str) -> str:
    (code,) = re.findall(rf"```python\n({first_line}.*?)```", PAGE.read_text(), re.DOTALL)
    return code


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("RGBA", 3), ("L", 1), ("P", 3), ("LA", 1)])
def test_the_reader_of_the_page_makes_the_pixels_that_predict_sees(tmp_path, mode, channels):
    found = {}
    exec(python_of("# reader"), found)
    pixels = np.random.default_rng(0).integers(0, 256, (50, 71, 4), np.uint8)
    path = tmp_path / "picture.png"
    Image.fromarray(pixels).convert(mode).save(path)
    expected = preprocess([path], (channels, 20, 24), resize=True)
    made = found["read"](path, 20, 24, "L" if channels == 1 else "RGB")
    np.testing.assert_array_equal(made, expected.numpy())


def test_the_reader_of_the_page_turns_photographs_upright(tmp_path):
    found = {}
    exec(python_of("# reader"), found)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 30, 3), np.uint8))
    exif = image.getexif()
    exif[0x0112] = 6  # a camera that was held on its side
    image.save(tmp_path / "photo.jpg", exif=exif)
    expected = preprocess([tmp_path / "photo.jpg"], (3, 16, 16), resize=True)
    np.testing.assert_array_equal(found["read"](tmp_path / "photo.jpg", 16, 16), expected.numpy())


def test_the_python_of_the_page_prints_class_and_radius(folder):
    code = python_of("import json")
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
