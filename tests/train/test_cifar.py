"""CIFAR through its official archive: from a file, a folder and a server, in miniature."""

import http.server
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from skewconv.errors import ArgumentError
from skewconv.train.data import ArchiveError, DataError, Dataset, UnreachableError, load_dataset
from skewconv.train.data.cifar import CIFAR10, Cifar
from skewconv.train.data.load import load_cifar
from tests.train.archives import MINI10, MINI100, batches, pickled, write_archive


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
    assert kept == {
        "manifest.json",
        "train_images.npy",
        "train_labels.npy",
        "test_images.npy",
        "test_labels.npy",
    }


def test_a_download_with_a_wrong_checksum_is_refused(server: tuple[Path, str], root: Path, no_trace) -> None:
    folder, address = server
    write_archive(folder / "mini.tar.gz", MINI10, batches(MINI10))
    spec = replace(MINI10, url=f"{address}/mini.tar.gz")
    with pytest.raises(ArchiveError, match="checksum"):
        load_cifar(spec, root, None, download=True)
    no_trace()


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
