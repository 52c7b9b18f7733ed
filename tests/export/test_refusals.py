"""What cannot be exported or read is refused in words, and leaves no file."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from skewconv.errors import SkewconvError
from skewconv.export import ExportError, check, onnx, open_file
from skewconv.export.plain import Radius
from skewconv.models import resnet18
from tests.export.networks import SHAPE, images, network


@pytest.fixture(scope="module")
def exported_file(tmp_path_factory):
    return onnx(network("soc-zeros"), tmp_path_factory.mktemp("whole") / "net.onnx", SHAPE, images=images()).files[0]


def test_a_network_without_useful_radii_is_exported_only_without_them(tmp_path):
    torch.manual_seed(0)
    model = resnet18(in_channels=1, width=2).eval()
    with pytest.raises(ExportError, match=r"cannot be certified: its proven Lipschitz bound is .* --no-radius"):
        onnx(model, tmp_path / "plain.onnx", SHAPE, images=images())
    assert list(tmp_path.iterdir()) == []
    found = onnx(model, tmp_path / "plain.onnx", SHAPE, images=images(), radius=False)
    logits, radius = open_file(found.files[0])(images())
    assert radius is None
    with torch.no_grad():
        torch.testing.assert_close(logits, model(images()), atol=1e-4, rtol=1e-4)


def test_a_layer_that_nothing_is_known_of_is_named(tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Hardswish())
    with pytest.raises(ExportError, match=r"Hardswish.*--no-radius"):
        onnx(model, tmp_path / "net.onnx", SHAPE)
    with pytest.raises(SkewconvError, match=r"'2' \(torch.nn.modules.activation.Hardswish\)"):
        onnx(model, tmp_path / "net.onnx", SHAPE, radius=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"opset": 12}, "opset 12 is too old: choose from 13 to"),
        ({"opset": 99}, "opset 99 is not known here"),
        ({"tol": 0.0}, "tol must be"),
        ({"weights": "int8"}, "weights must be 'float32' or 'float16', got 'int8'"),
        ({"max_mb": 0.06}, "the smallest forms of all layers hold"),
        ({"images": torch.rand(2, 1, 4, 4)}, r"images must be floating, of shape"),
        ({"name": "net.pt"}, r"ends in \.onnx, got 'net\.pt'"),
        ({"name": "none/net.onnx"}, "is not a folder"),
    ],
)
def test_a_request_that_cannot_be_met_leaves_no_file(options, message, tmp_path):
    options = {"name": "net.onnx", **options}
    with pytest.raises(SkewconvError, match=message):
        onnx(network("soc-zeros"), tmp_path / options.pop("name"), SHAPE, **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", ["logits", "radius"])
def test_a_file_that_fails_its_check_is_not_put_in_place_and_leaves_the_older_one(wrong, tmp_path, monkeypatch):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"older")
    if wrong == "radius":
        # A rule that claims a tenth too much.
        monkeypatch.setattr("skewconv.export.write.radius_rule", _generous(0.9))
        message = "above the one that is proven"
    else:
        monkeypatch.setattr(check, "expected", check.expected)
        monkeypatch.setattr("skewconv.export.write.expected", _shifted)
        message = "a logit differs by"
    with pytest.raises(ExportError, match=message):
        onnx(network("soc-zeros"), path, SHAPE, images=images())
    assert path.read_bytes() == b"older"
    assert [each.name for each in tmp_path.iterdir()] == ["net.onnx"]


def _generous(factor):
    from skewconv.export.check import radius_rule

    def rule(certifier, slack):
        sound = radius_rule(certifier, slack)
        return Radius(factor * sound.pair_bounds, sound.subtracted)

    return rule


def _shifted(model, *arguments):
    return [batch._replace(original=batch.original + 1) for batch in check.expected(model, *arguments)]


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "text"])
def test_a_damaged_file_is_known(damage, exported_file, tmp_path):
    content = bytearray(exported_file.read_bytes())
    if damage == "changed":
        # In the middle of a matrix, where onnxruntime notices nothing.
        content[len(content) // 2] ^= 0x10
    content = {"cut": content[: len(content) // 2], "empty": b"", "text": b"not a model"}.get(damage, content)
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    with pytest.raises(ExportError, match=r"net.onnx is (damaged|not an ONNX file)"):
        open_file(path)


@pytest.mark.parametrize("kind", ["torch-export", "vanilla"])
def test_damaged_files_for_pytorch_are_known(kind, files_for_pytorch, tmp_path):
    copies = [Path(shutil.copy(file, tmp_path)) for file in files_for_pytorch[kind].files]
    content = bytearray(copies[0].read_bytes())
    content[len(content) // 2] ^= 0x10
    copies[0].write_bytes(content)
    with pytest.raises(ExportError):
        open_file(copies[-1])


def test_images_that_do_not_fit_are_refused_in_words(exported_file):
    opened = open_file(exported_file)
    for wrong, message in (
        (torch.rand(2, 1, 9, 9), r"exported for images of shape \(batch, 1, 8, 8\), got \(2, 1, 9, 9\)"),
        (255 * images(), "divide pixels from 0 to 255 by 255"),
        (images().to(torch.uint8), "divide uint8 images by 255"),
    ):
        with pytest.raises(SkewconvError, match=message):
            opened(wrong)
    logits, radius = opened(images(3))
    assert logits.shape == (3, 10)
    assert radius.shape == (3,)
