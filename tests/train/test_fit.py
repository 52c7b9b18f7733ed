"""Training in Python, on names and on images in memory."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import skewconv
from skewconv import cli
from skewconv.errors import ArgumentError
from skewconv.nn import SOC2d
from skewconv.train import Fitted, fit, open_run, recipe
from skewconv.train.checkpoint import DataFacts, build_model
from skewconv.train.data import DataError, dataset_from_arrays
from skewconv.train.data.dataset import epoch_batches, make_splits
from skewconv.train.environment import Hardware, emulation_note
from skewconv.train.presets import CONFIG
from skewconv.train.session import lock

TINY = recipe("digits", epochs=2, width=2, batch_size=16, eval_batch_size=64)


def pictures(count: int = 16, side: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Dark and light ones, by turns."""
    labels = np.arange(count) % 2
    noise = np.random.default_rng(0).integers(0, 100, (count, 3, side, side))
    return (150 * labels[:, None, None, None] + noise).astype(np.uint8), labels


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    return fit(TINY, (pictures(), pictures(10)), out=tmp_path_factory.mktemp("fit") / "run")


def test_arrays_are_trained_on_judged_and_certified(fitted):
    results = fitted.record["results"]
    assert (results["status"], results["images"], fitted.config.data) == ("finished", 10, "arrays")
    assert not fitted.model.training
    judged = fitted.evaluate()
    assert (judged.clean, judged.certified) == (results["clean"], results["certified"])
    images, labels = (torch.from_numpy(array) for array in pictures(10))
    radii = skewconv.certify.radii(fitted.model, images.float() / 255, labels)
    assert float((radii > 0).double().mean()) <= judged.clean
    assert fitted.input_shape == (3, 5, 5)


def test_the_folder_is_a_run_like_any_other_but_for_its_images(fitted, capsys):
    assert fitted.path is not None
    run = open_run(fitted.path)
    x = torch.rand(2, 3, 5, 5)
    with torch.no_grad():
        # to the bit: the same weights in the same layers, on one machine
        assert torch.equal(run.model(x), fitted.model(x))
    assert run.record() == fitted.record
    assert cli.main(["evaluate", str(fitted.path)]) == 2
    assert "arrays are images in memory" in capsys.readouterr().err
    with pytest.raises(ArgumentError, match="already holds a run: go on with resume=True"):
        fit(TINY, (pictures(), pictures(10)), out=fitted.path)


def test_a_run_is_resumed_with_its_own_config_only(fitted):
    data, described = (pictures(), pictures(10)), (fitted.path / CONFIG).read_text()
    assert fit(TINY, data, out=fitted.path, resume=True).record == fitted.record
    with pytest.raises(ArgumentError, match="--seed was 0 and is now 1"):
        fit(replace(TINY, seed=1), data, out=fitted.path, resume=True)
    assert (fitted.path / CONFIG).read_text() == described
    with pytest.raises(ArgumentError, match="resume=True needs out"):
        fit(TINY, data, resume=True)


def test_two_do_not_write_one_run(fitted, tmp_path):
    folder = Path(shutil.copytree(str(fitted.path), tmp_path / "run"))
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    alone = Hardware(device="cpu").fabric(TINY)
    with lock(folder, alone), pytest.raises(ArgumentError, match=r"another process has the run in .* in hand"):
        fit(TINY, (pictures(), pictures(10)), out=folder, resume=True)
    assert {name: (folder / name).read_bytes() for name in before} == before


@pytest.mark.parametrize("kind", ["floats", "grey", "tensors", "torch"])
def test_images_come_in_every_usual_form(kind):
    images, labels = pictures(6)
    pixels, names = torch.from_numpy(images), torch.from_numpy(labels)
    forms: dict[str, Any] = {
        "floats": (images / np.float32(255), labels.astype(np.int32)),
        "grey": (images[:, 0], labels),
        "tensors": (pixels.float() / 255, names),
        "torch": TensorDataset(pixels, names),
    }
    data = dataset_from_arrays(forms[kind], forms[kind], classes=["dark", "light"])
    expected = images[:, :1] if kind == "grey" else images
    assert data.classes == ("dark", "light")
    np.testing.assert_array_equal(data.train.images, expected)
    np.testing.assert_array_equal(data.test.labels, labels)
    assert data.mean == pytest.approx((expected / 255).mean((0, 2, 3)))


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (np.zeros((4, 8, 8, 3), np.uint8), np.zeros(4, int), "channels come first"),
        (np.zeros((4, 1, 8, 8), np.int64), np.zeros(4, int), "int64: uint8, or floats"),
        (np.full((4, 1, 8, 8), 0.001), np.zeros(4, int), "from 0.001 to 0.001: .* whole 255ths"),
        (np.zeros((4, 1, 8, 8), np.uint8), np.zeros(3, int), r"\(4,\) whole numbers"),
        (np.zeros((4, 1, 8, 8), np.uint8), np.zeros(4, int), "1 classes: name at least two"),
    ],
)
def test_what_is_no_dataset_is_refused(images, labels, words):
    with pytest.raises(DataError, match=words):
        dataset_from_arrays((images, labels), (images, labels))


def test_settings_are_called_as_their_flags():
    config = recipe("cifar10", minutes=2, conv="bcop", lr=0.5, padding=2)
    assert (config.epochs, config.minutes, config.model.conv, config.optim.lr) == (None, 2.0, "bcop", 0.5)
    assert config.loading.padding == 2
    with pytest.raises(ArgumentError, match="no setting is called 'widht': did you mean 'width'"):
        recipe("digits", widht=3)
    with pytest.raises(ArgumentError, match="--width is 3"):
        recipe("digits", width=3)


def test_arithmetic_that_the_processor_emulates_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    half, single = recipe("digits", precision="bf16-mixed"), recipe("digits")
    for known in (True, False):
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda known=known: known)
        assert ("--precision 32-true" in emulation_note(half, "cpu")) == (not known)
        assert emulation_note(half, "cuda") == emulation_note(single, "cpu") == ""


def test_settings_of_the_network_and_of_the_images_reach_them() -> None:
    images = np.random.default_rng(0).integers(0, 256, (32, 3, 8, 8), np.uint8)
    data = dataset_from_arrays((images, np.arange(32) % 2), (images, np.arange(32) % 2))
    changes: dict[str, Any] = {"width": 2, "batch_size": 16, "flip": True, "padding": 0}
    network: dict[str, Any] = {"circular_from": 4, "norm_bound": 1.5, "norm_bound_1x1": 3.0}
    plain, changed = recipe("cifar10", **changes), recipe("cifar10", **changes, **network, alternate_flip=True)
    model = build_model(changed, DataFacts.of(data))
    layers = [m for m in model.modules() if isinstance(m, SOC2d)]
    assert [m.padding_mode for m in layers] == ["circular", "zeros", "zeros"]
    assert [m.norm_bound for m in layers] == [1.5, 1.5, 3.0]
    fabric = Hardware().fabric(plain)
    batches = [next(iter(epoch_batches(c, make_splits(c, data), fabric, epoch=0)))[0] for c in (plain, changed)]
    assert not torch.equal(*batches)
