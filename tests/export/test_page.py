"""The code of the page on export runs, in Python and in JavaScript, on a file that was exported here."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import PIL
import pytest
from PIL import Image, ImageOps
from torch import nn

from skewconv.export import open_file
from skewconv.export.onnx_target import onnx_model
from skewconv.export.plain import Network
from skewconv.export.target import FileOptions
from skewconv.train.data.images import preprocess
from tests.export.networks import exported, images

PAGE = Path(__file__).parents[2] / "docs" / "export.md"
SAID = re.compile(r"^class (\w+): no change shorter than ([\d.]+) can alter this$", re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the page speaks of: a network and images."""
    place = tmp_path_factory.mktemp("page")
    exported("onnx", "soc-zeros", place).files[0].rename(place / "digits.onnx")
    np.save(place / "images.npy", images(5).numpy())
    (place / "images.json").write_text(json.dumps(images(5).tolist()))
    return place


def run(command, folder):
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [(label, float(radius)) for label, radius in SAID.findall(done.stdout)]
    assert len(found) == 5, done.stdout
    logits, radii = open_file(folder / "digits.onnx")(images(5))
    assert [int(label) for label, _ in found] == logits.argmax(1).tolist()
    for (_, shown), radius in zip(found, radii.tolist(), strict=True):
        assert radius - 2e-4 <= shown <= radius + 1e-6


def code_of(language: str, first_line: str) -> str:
    (code,) = re.findall(rf"```{language}\n({first_line}.*?)```", PAGE.read_text(), re.DOTALL)
    return code


def reader():
    found = {}
    exec(code_of("python", "# reader"), found)
    return found["read"]


def picture(height, width, mode="RGB"):
    """Noise, in which every rounding shows."""
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 4), np.uint8)).convert(mode)


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("RGBA", 3), ("L", 1), ("P", 3), ("LA", 1)])
def test_the_readers_of_the_page_make_the_pixels_that_predict_sees(tmp_path, mode, channels):
    path, size = tmp_path / "picture.png", (channels, 20, 24)
    picture(50, 71, mode).save(path)
    expected = preprocess([path], size, resize=True)
    np.testing.assert_array_equal(reader()(path, 20, 24, "L" if channels == 1 else "RGB"), expected.numpy())
    np.testing.assert_array_equal(read_in_javascript(picture(50, 71, mode), size, tmp_path), expected.numpy())


def test_the_reader_of_the_page_turns_photographs_upright(tmp_path):
    image = picture(40, 30)
    exif = image.getexif()
    exif[0x0112] = 6  # a camera that was held on its side
    image.save(tmp_path / "photo.jpg", exif=exif)
    expected = preprocess([tmp_path / "photo.jpg"], (3, 16, 16), resize=True)
    np.testing.assert_array_equal(reader()(tmp_path / "photo.jpg", 16, 16), expected.numpy())


def node() -> str:
    return shutil.which("node") or pytest.skip("node is not installed: the JavaScript of docs/export.md was not run")


def read_in_javascript(image, size, folder):
    rgba = np.asarray(image.convert("RGBA"))
    (folder / "given.json").write_text(
        json.dumps({"data": rgba.flatten().tolist(), "width": image.width, "height": image.height})
    )
    code = (
        code_of("js", "// reader")
        + """
        const given = JSON.parse(require("fs").readFileSync("given.json", "utf8"));
        console.log(JSON.stringify(Array.from(read(given, %d, %d, %d))));"""
    )
    command = [node(), "-e", code % (*size[1:], size[0])]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    return np.array(json.loads(done.stdout), np.float32).reshape(1, *size)


# Older versions of Pillow begin with the width for tall pictures, too.
TALL = [(90, 31), (400, 20)] if int(PIL.__version__.split(".")[0]) >= 13 else []


@pytest.mark.parametrize(("height", "width"), [(8, 8), (8, 12), (5, 3), (61, 200), (40, 40), (1, 1), *TALL])
def test_pictures_of_any_size_are_resized_as_by_pillow_in_the_file_and_in_javascript(height, width, tmp_path):
    rgb, size = picture(height, width), (3, 8, 12)
    fitted = np.asarray(ImageOps.fit(rgb, (12, 8), Image.Resampling.BICUBIC), np.float32).transpose(2, 0, 1)[None] / 255
    np.testing.assert_array_equal(read_in_javascript(rgb, size, tmp_path), fitted)
    model = onnx_model(Network(nn.Flatten(), None, size), {}, FileOptions(preprocess=True))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"pictures": np.asarray(rgb)[None]})
    np.testing.assert_array_equal(found.reshape(fitted.shape), fitted)


def test_the_python_of_the_page_prints_class_and_radius(folder):
    code = code_of("python", "import json")
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    run([sys.executable, "-c", code], folder)


def test_the_javascript_of_the_page_prints_the_same(folder):
    there = [node(), "-e", "require('onnxruntime-node')"]
    if subprocess.run(there, capture_output=True, check=False, cwd=folder).returncode:
        pytest.skip(
            "onnxruntime-node is not installed (npm install onnxruntime-node, and NODE_PATH=.../node_modules): the "
            "JavaScript of docs/export.md was not run"
        )
    run([node(), "-e", code_of("js", "const fs")], folder)
