"""The cache: instant, checked on every load, rebuilt when damaged, safe with many processes; and the digits in it."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from skewconv.train.data import DataError, cache_dir, cached_or_built, load_dataset
from skewconv.train.data.dataset import Entry
from tests.waiting import PATIENCE


def kept(root: Path) -> Path:
    (folder,) = (root / "datasets").iterdir()
    return folder


def fill(entry: Entry) -> None:
    for split in ("train", "test"):
        entry.images(split, (2, 1, 4, 4))[:] = 7
        entry.labels(split, [0, 1])
    entry.classes = ("a", "b")


def bit_flipped(content: bytes) -> bytes:
    return content[:-2] + bytes([content[-2] ^ 1]) + content[-1:]


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("train_images.npy", lambda content: content[:-1]),
        ("test_images.npy", bit_flipped),
        ("train_labels.npy", None),
        ("manifest.json", None),
        *(("manifest.json", lambda _, new=new: new) for new in (b"{}", b"[]", b"\xff", b'{"schema": 99}')),
    ],
)
def test_a_damaged_file_is_noticed_and_rebuilt(file, damage, root, caplog):
    load_dataset("digits", root=root)
    path = kept(root) / file
    whole = path.read_bytes()
    path.unlink() if damage is None else path.write_bytes(damage(whole))
    with caplog.at_level(logging.WARNING, "skewconv"):
        load_dataset("digits", root=root)
    assert "damaged" in caplog.text
    assert path.read_bytes() == whole


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, DataError])
def test_a_build_that_fails_leaves_nothing(error, root, no_trace):
    def build(entry: Entry) -> None:
        fill(entry)
        raise error("stop")

    with pytest.raises(error):
        cached_or_built("toy", "toy", "1", root, build)
    no_trace()


def test_many_builders_at_once_leave_one_whole_entry(root):
    together = threading.Barrier(4)

    def build(entry: Entry) -> None:
        fill(entry)
        together.wait(PATIENCE)

    with ThreadPoolExecutor(4) as pool:
        loads = [pool.submit(cached_or_built, "toy", "toy", "1", root, build) for _ in range(4)]
        assert all((load.result().train.images == 7).all() for load in loads)
    assert kept(root).name == "toy"


def test_a_cache_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="SKEWCONV_CACHE"):
        load_dataset("digits", root=tmp_path / "file" / "cache")


def test_the_cache_lies_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    monkeypatch.delenv("SKEWCONV_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_dir() == tmp_path / "home" / ".cache" / "skewconv"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_dir() == tmp_path / "home" / ".cache" / "skewconv"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "skewconv"
    monkeypatch.setenv("SKEWCONV_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"
    assert cache_dir(tmp_path / "given") == tmp_path / "given"


def test_digits_are_those_of_scikit_learn_scaled_and_split(root):
    dataset, original = load_dataset("digits", root=root), load_digits()
    assert dataset.image_shape == (1, 8, 8)
    assert dataset.classes == tuple("0123456789")
    assert len(dataset.train) + len(dataset.test) == 1797
    assert dataset.train.images.max() == 255
    # Back on the scale 0 .. 16 the two halves are the original images, each exactly once.
    images = np.concatenate([dataset.train.images, dataset.test.images])[:, 0]
    labels = np.concatenate([dataset.train.labels, dataset.test.labels])
    found = sorted((label, np.rint(image * (16 / 255)).tobytes()) for label, image in zip(labels, images, strict=True))
    expected = sorted((label, image.tobytes()) for label, image in zip(original.target, original.images, strict=True))
    assert found == expected
    assert set(np.unique(images)) == {round(value * 255 / 16) for value in range(17)}


def test_the_split_is_stratified_and_never_changes(root):
    dataset = load_dataset("digits", root=root)
    shares = np.bincount(dataset.test.labels) / np.bincount(load_digits().target)
    np.testing.assert_allclose(shares, 0.2, atol=0.003)
    assert dataset.test.labels[:12].tolist() == [2, 3, 1, 2, 5, 6, 0, 5, 5, 8, 3, 2]
    assert (int(dataset.test.images.sum()), int(dataset.train.images.sum())) == (1789577, 7164224)
