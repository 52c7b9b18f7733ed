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
_BLOCK = 1 << 20
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
        self._facts: dict[str, Any] = {}
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

    def labels(self, split: str, labels: npt.ArrayLike, files: Sequence[str] = ()) -> None:
        """The (N,) labels of a split, integers from 0, and file names where its images are files."""
        np.save(self.folder / f"{split}_labels.npy", np.asarray(labels, dtype=np.int64), allow_pickle=False)
        if files:
            self._files[split] = list(files)

    def describe(self, classes: Sequence[str], augmentation: Augmentation) -> None:
        """The class names, and an augmentation that keeps their meaning."""
        self._facts = {
            "classes": list(classes),
            "augmentation": {"padding": augmentation.padding, "flip": augmentation.flip},
        }

    def finish(self, name: str, fingerprint: str) -> None:
        """Check the arrays against each other and write the manifest, which makes the entry whole."""
        mean, std = moments(np.load(self.folder / "train_images.npy", mmap_mode="r"))
        manifest = {
            "schema": SCHEMA,
            "name": name,
            "fingerprint": fingerprint,
            **self._facts,
            "mean": mean,
            "std": std,
            "files": self._files,
            "sha256": {array: file_digest(self.folder / f"{array}.npy", "sha256").hex() for array in _ARRAYS},
        }
        _dataset(name, self.folder, manifest)
        (self.folder / "manifest.json").write_text(json.dumps(manifest, indent=2, allow_nan=False))


def is_cached(key: str, root: Path) -> bool:
    """True if there is an entry, whole or damaged."""
    return (root / "datasets" / key).is_dir()


def cached_or_built(name: str, key: str, fingerprint: str, root: Path, build: Callable[[EntryWriter], None]) -> Dataset:
    """The cached entry if it is whole; else a new one, filled by `build`. A failed build leaves nothing behind."""
    home, is_new = root / "datasets", not root.exists()
    folder, scratch = home / key, home / f"{_TEMPORARY}{key}-{secrets.token_hex(6)}"
    if is_cached(key, root):
        try:
            return _open(name, folder)
        except DamagedEntryError as damage:
            _log.warning("the cached copy of %s is damaged (%s): it will be prepared again", name, damage)
            shutil.rmtree(folder, ignore_errors=True)
    try:
        scratch.mkdir(parents=True)
        _remove_stale(home)
        writer = EntryWriter(scratch)
        build(writer)
        writer.finish(name, fingerprint)
        try:
            os.replace(scratch, folder)
        except OSError:
            # Where another process was first, its entry is as good.
            if not is_cached(key, root):
                raise
        return _open(name, folder)
    except DamagedEntryError as damage:
        raise DataError(f"{name} cannot be read back from {folder} ({damage}): check the disk, and try again") from None
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


def file_digest(path: Path, algorithm: str) -> bytes:
    """The digest of a file, by an algorithm of hashlib."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.digest()


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
        for array in _ARRAYS:
            if file_digest(folder / f"{array}.npy", "sha256").hex() != manifest["sha256"][array]:
                raise DamagedEntryError(f"{array} does not match its checksum")
        return _dataset(name, folder, manifest)
    except (OSError, ValueError, KeyError, TypeError, DataError) as error:
        raise DamagedEntryError(f"{type(error).__name__}: {error}") from error


def _dataset(name: str, folder: Path, manifest: dict[str, Any]) -> Dataset:
    arrays = {array: np.load(folder / f"{array}.npy", mmap_mode="r", allow_pickle=False) for array in _ARRAYS}
    # Entries of earlier versions have no file names.
    files = {split: tuple(names) for split, names in manifest.get("files", {}).items()}
    splits = {
        split: Split(arrays[f"{split}_images"], arrays[f"{split}_labels"], files.get(split))
        for split in ("train", "test")
    }
    return Dataset(
        name=name,
        classes=tuple(manifest["classes"]),
        **splits,
        mean=tuple(manifest["mean"]),
        std=tuple(manifest["std"]),
        augmentation=Augmentation(**manifest["augmentation"]),
        fingerprint=manifest["fingerprint"],
    )
