"""What cannot be exported or read is refused in words, and leaves no file."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from skewconv.errors import SkewconvError
from skewconv.export import TARGETS, ExportError, check, onnx, open_file
from skewconv.export.plain import Radius
from skewconv.models import resnet18
from tests.export.networks import SHAPE, exported, images, network


@pytest.fixture(scope="module")
def files(tmp_path_factory, files_for_pytorch):
    """kind -> the files of one network, the one to open last."""
    made = files_for_pytorch | {"onnx": exported("onnx", "soc-zeros", tmp_path_factory.mktemp("whole"))}
    return {kind: export.files for kind, export in made.items()}


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


def _shifted(*arguments):
    return [batch._replace(original=batch.original + 1) for batch in check.expected(*arguments)]


def _generous(certifier, slack):
    """A rule that claims a tenth too much."""
    sound = check.radius_rule(certifier, slack)
    return Radius(0.9 * sound.pair_bounds, sound.subtracted)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [("expected", _shifted, "a logit differs by"), ("radius_rule", _generous, "above the one that is proven")],
)
def test_a_file_that_fails_its_check_is_not_put_in_place(name, wrong, message, tmp_path, monkeypatch):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"older")
    monkeypatch.setattr(f"skewconv.export.write.{name}", wrong)
    with pytest.raises(ExportError, match=message):
        onnx(network("soc-zeros"), path, SHAPE, images=images())
    assert path.read_bytes() == b"older"
    assert [each.name for each in tmp_path.iterdir()] == ["net.onnx"]


@pytest.mark.parametrize(
    ("kind", "damage"),
    [("onnx", "cut"), ("onnx", "empty"), ("onnx", "text"), *((kind, "changed") for kind in TARGETS)],
)
def test_a_damaged_file_is_known(kind, damage, files, tmp_path):
    copies = [Path(shutil.copy(file, tmp_path)) for file in files[kind]]
    content = bytearray(copies[0].read_bytes())
    # In the middle of a matrix, where onnxruntime notices nothing.
    content[len(content) // 2] ^= 0x10
    spoilt = {"cut": content[: len(content) // 2], "empty": b"", "text": b"not a model"}
    copies[0].write_bytes(spoilt.get(damage, content))
    with pytest.raises(ExportError, match=r"is damaged|is not an ONNX file|not a program of torch.export"):
        open_file(copies[-1])


def test_images_that_do_not_fit_are_refused_in_words(files):
    opened = open_file(files["onnx"][0])
    for wrong, message in (
        (torch.rand(2, 1, 9, 9), r"exported for images of shape \(batch, 1, 8, 8\), got \(2, 1, 9, 9\)"),
        (255 * images(), "divide pixels from 0 to 255 by 255"),
        (images().to(torch.uint8), "divide uint8 images by 255"),
    ):
        with pytest.raises(SkewconvError, match=message):
            opened(wrong)
