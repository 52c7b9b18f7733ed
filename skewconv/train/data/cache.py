"""The dataset cache: one folder for each dataset, arrays as memory-mapped .npy files, a manifest with checksums."""

import hashlib
import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from skewconv.train.data.dataset import Augmentation, DataError, Dataset, Images, Split, moments

SCHEMA = 1
_ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
_TEMPORARY = ".tmp-"
_STALE_SECONDS = 24 * 3600
_log = logging.getLogger("skewconv")


class DamagedEntryError(Exception):
    """A cache entry that does not match its manifest. Internal: the entry is rebuilt."""


def cache_dir(root: str | os.PathLike[str] | None = None) -> Path:
    """`root`, or $SKEWCONV_CACHE, or skewconv under $XDG_CACHE_HOME, or ~/.cache/skewconv."""
    if own := root or os.environ.get("SKEWCONV_CACHE"):
        return Path(own).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path is to be ignored.
    if os.path.isabs(base):
        return Path(base) / "skewconv"
    try:
        return Path.home() / ".cache" / "skewconv"
    except RuntimeError as error:
        raise DataError("no home folder is known for the cache: set SKEWCONV_CACHE to a folder") from error


class EntryWriter:
    """Writes a new cache entry, array by array, straight to the disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._classes: tuple[str, ...] = ()
        self._augmentation = Augmentation()
        self._files: dict[str, list[str]] = {}

    def images(self, split: str, shape: tuple[int, int, int, int]) -> Images:
        """A writable memory-mapped (N, C, H, W) uint8 array for the caller to fill."""
        path = self.folder / f"{split}_images.npy"
        images = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
        # Writing into a map whose blocks the disk does not have ends the process: they are taken now, which may fail.
        if hasattr(os, "posix_fallocate"):
            with open(path, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        return images

    def labels(self, split: str, labels: npt.ArrayLike) -> None:
        """The (N,) labels of a split, integers from 0."""
        np.save(self.folder / f"{split}_labels.npy", np.asarray(labels, dtype=np.int64), allow_pickle=False)

    def files(self, split: str, names: Sequence[str]) -> None:
        """The file names of a split, where its images are files."""
        self._files[split] = list(names)

    def describe(self, classes: Sequence[str], augmentation: Augmentation) -> None:
        """The class names, and an augmentation that keeps their meaning."""
        self._classes, self._augmentation = tuple(classes), augmentation

    def finish(self, name: str, fingerprint: str) -> None:
        """Check the arrays against each other and write the manifest, which makes the entry whole."""
        arrays = {array: np.load(self.folder / f"{array}.npy", mmap_mode="r") for array in _ARRAYS}
        for split in ("train", "test"):
            images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
            Split(images, labels)
            if not len(images):
                raise DataError(f"{name}: the {split} split is empty: at least one image is needed")
            if len(wrong := labels[(labels < 0) | (labels >= len(self._classes))]):
                allowed = f"0 to {len(self._classes) - 1} are allowed"
                raise DataError(f"{name}, {split}: label {wrong[0]} is out of range: {allowed}")
        if arrays["train_images"].shape[1:] != arrays["test_images"].shape[1:]:
            raise DataError(f"{name}: train and test images differ in shape: they must be alike")
        mean, std = moments(arrays["train_images"])
        manifest = {
            "schema": SCHEMA,
            "name": name,
            "fingerprint": fingerprint,
            "classes": list(self._classes),
            "augmentation": {"padding": self._augmentation.padding, "flip": self._augmentation.flip},
            "mean": mean,
            "std": std,
            "files": self._files,
            "sha256": {array: _sha256(self.folder / f"{array}.npy") for array in _ARRAYS},
        }
        (self.folder / "manifest.json").write_text(json.dumps(manifest, indent=2, allow_nan=False))


def is_cached(key: str, root: Path) -> bool:
    """True if there is an entry, whole or damaged."""
    return (root / "datasets" / key).is_dir()


def cached_or_built(name: str, key: str, fingerprint: str, root: Path, build: Callable[[EntryWriter], None]) -> Dataset:
    """The cached entry if it is whole; else a new one, filled by `build`. A failed build leaves nothing behind."""
    home, is_new = root / "datasets", not root.exists()
    if is_cached(key, root):
        try:
            return _open(name, home / key)
        except DamagedEntryError as damage:
            _log.warning("the cached copy of %s is damaged (%s): it will be prepared again", name, damage)
    scratch = home / f"{_TEMPORARY}{key}-{secrets.token_hex(6)}"
    try:
        scratch.mkdir(parents=True)
        _remove_stale(home)
        writer = EntryWriter(scratch)
        build(writer)
        writer.finish(name, fingerprint)
        return _install(name, scratch, home / key)
    except OSError as error:
        raise DataError(
            f"{name} could not be kept in the cache {root}: {error.strerror or error}. "
            "Free some space, or name another folder in SKEWCONV_CACHE"
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        with suppress(OSError):
            home.rmdir()  # succeeds only when nothing is in it
            if is_new:
                root.rmdir()


def _install(name: str, scratch: Path, folder: Path) -> Dataset:
    """Rename the new entry into place and open it; a whole entry of another process that was first is kept."""
    for _ in range(10):
        try:
            os.replace(scratch, folder)
        except OSError:
            if not folder.is_dir():
                raise
        try:
            return _open(name, folder)
        except DamagedEntryError:
            aside = folder.with_name(f"{_TEMPORARY}{folder.name}-{secrets.token_hex(6)}")
            with suppress(FileNotFoundError):
                os.replace(folder, aside)
            shutil.rmtree(aside, ignore_errors=True)
    raise DataError(f"{name} was prepared but cannot be read back from {folder}: check the disk, and try again")


def _remove_stale(home: Path) -> None:
    """Remove what killed processes left more than a day ago."""
    for folder in home.glob(f"{_TEMPORARY}*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def _open(name: str, folder: Path) -> Dataset:
    """The dataset of an entry, with every byte checked."""
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
        if manifest["schema"] != SCHEMA:
            raise DamagedEntryError(f"schema {manifest['schema']}, not {SCHEMA}")
        arrays: dict[str, Any] = {}
        for array in _ARRAYS:
            if _sha256(folder / f"{array}.npy") != manifest["sha256"][array]:
                raise DamagedEntryError(f"{array} does not match its checksum")
            arrays[array] = np.load(folder / f"{array}.npy", mmap_mode="r", allow_pickle=False)
        # Entries of earlier versions have no file names.
        files = {split: tuple(names) for split, names in manifest.get("files", {}).items()}
        return Dataset(
            name=name,
            classes=tuple(manifest["classes"]),
            train=Split(arrays["train_images"], arrays["train_labels"], files.get("train")),
            test=Split(arrays["test_images"], arrays["test_labels"], files.get("test")),
            mean=tuple(manifest["mean"]),
            std=tuple(manifest["std"]),
            augmentation=Augmentation(**manifest["augmentation"]),
            fingerprint=manifest["fingerprint"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedEntryError(f"{type(error).__name__}: {error}") from error


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
