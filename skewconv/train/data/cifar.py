"""CIFAR-10 and CIFAR-100 from their official archives of Python pickles."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from skewconv.train.data.archive import read_members
from skewconv.train.data.cache import EntryWriter
from skewconv.train.data.dataset import Augmentation, Images, Labels
from skewconv.train.data.download import check_md5, download, md5_of
from skewconv.train.data.errors import ArchiveError, DataError
from skewconv.train.data.unpickle import load_batch

_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE


@dataclass(frozen=True)
class Cifar:
    """What an official archive is and holds."""

    name: str
    url: str
    md5: str
    folder: str
    train_files: tuple[str, ...]
    test_file: str
    meta_file: str
    train_count: int
    test_count: int
    num_classes: int
    label_key: str
    names_key: str

    def limits(self) -> dict[str, int]:
        """The files to read, each with the most bytes it may hold: its pixels, and a line of text an image."""
        rows = {file: self.train_count // len(self.train_files) for file in self.train_files}
        rows[self.test_file] = self.test_count
        return {file: count * (_PIXELS + 256) + (1 << 16) for file, count in rows.items()} | {self.meta_file: 1 << 16}


CIFAR10 = Cifar(
    name="cifar10",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    md5="c58f30108f718f92721af3b95e74349a",
    folder="cifar-10-batches-py",
    train_files=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test_file="test_batch",
    meta_file="batches.meta",
    train_count=50_000,
    test_count=10_000,
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
    train_count=50_000,
    test_count=10_000,
    num_classes=100,
    label_key="fine_labels",
    names_key="fine_label_names",
)


def build_from_download(spec: Cifar, writer: EntryWriter) -> None:
    """Fetch the official archive, check it, and unpack it into the cache entry."""
    archive = writer.folder / "archive"
    # Packed, the archives are smaller than the sum of their files.
    download(spec.url, archive, md5=spec.md5, limit=sum(spec.limits().values()))
    _build(spec, writer, _from_archive(spec, archive))
    archive.unlink()


def build_from_archive(spec: Cifar, archive: Path, writer: EntryWriter) -> None:
    """Unpack a local copy of the official archive into the cache entry."""
    _build(spec, writer, _from_archive(spec, archive))


def build_from_folder(spec: Cifar, folder: Path, writer: EntryWriter) -> None:
    """Read the files of an unpacked archive into the cache entry."""
    _build(spec, writer, _from_folder(spec, folder))


def check_archive(spec: Cifar, archive: Path) -> None:
    """Refuse an archive that is not the official one."""
    try:
        found = md5_of(archive)
    except OSError as error:
        raise DataError(f"{archive} cannot be read: {error.strerror}") from error
    check_md5(found, spec.md5, f"{spec.name} from {archive}")


def fingerprint_of_folder(spec: Cifar, folder: Path) -> str:
    """Names the content of an unpacked archive."""
    digest = hashlib.sha256()
    for name, data in _from_folder(spec, folder):
        digest.update(f"{name} {len(data)}\n".encode() + data)
    return f"folder-{digest.hexdigest()[:20]}"


def _from_archive(spec: Cifar, archive: Path) -> Iterator[tuple[str, bytes]]:
    prefix = spec.folder + "/"
    for name, data in read_members(archive, {prefix + file: limit for file, limit in spec.limits().items()}):
        yield name.removeprefix(prefix), data


def _from_folder(spec: Cifar, folder: Path) -> Iterator[tuple[str, bytes]]:
    inner = folder / spec.folder if (folder / spec.folder).is_dir() else folder
    for file, limit in spec.limits().items():
        path = inner / file
        if not path.is_file():
            raise DataError(f"{spec.name}: {file} is not in {inner}: name the folder the official archive unpacks to")
        try:
            with open(path, "rb") as opened:
                data = opened.read(limit + 1)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from error
        if len(data) > limit:
            raise ArchiveError(f"{path} holds more than {limit} bytes: not the file expected")
        yield file, data


def _build(spec: Cifar, writer: EntryWriter, files: Iterator[tuple[str, bytes]]) -> None:
    train_images = writer.images("train", (spec.train_count, 3, _SIDE, _SIDE))
    test_images = writer.images("test", (spec.test_count, 3, _SIDE, _SIDE))
    train_labels = np.empty(spec.train_count, np.int64)
    test_labels = np.empty(spec.test_count, np.int64)
    step = spec.train_count // len(spec.train_files)
    for file, data in files:
        what = f"{spec.name}, {file}"
        batch = load_batch(data, what)
        if file == spec.meta_file:
            writer.describe(_class_names(batch.get(spec.names_key), spec, what), Augmentation())
        elif file == spec.test_file:
            test_images[:], test_labels[:] = _decode(batch, spec, spec.test_count, what)
        else:
            start = spec.train_files.index(file) * step
            rows = slice(start, start + step)
            train_images[rows], train_labels[rows] = _decode(batch, spec, step, what)
    writer.labels("train", train_labels)
    writer.labels("test", test_labels)


def _decode(batch: dict[str, object], spec: Cifar, count: int, what: str) -> tuple[Images, Labels]:
    """(count, 3, 32, 32) images and (count,) labels of one file, all checked."""
    images, labels = batch.get("data"), batch.get(spec.label_key)
    if not isinstance(images, np.ndarray):
        raise ArchiveError(f"{what}: there is no array 'data': not the file expected")
    if images.shape != (count, _PIXELS):
        raise ArchiveError(f"{what}: 'data' has the shape {images.shape}, {(count, _PIXELS)} is expected")
    if type(labels) is not list or not all(type(label) is int for label in labels):
        raise ArchiveError(f"{what}: there is no list of integers {spec.label_key!r}: not the file expected")
    if len(labels) != count:
        raise ArchiveError(f"{what}: {len(labels)} labels for {count} images: the file is damaged")
    # Compared as Python integers, which may be too large for int64.
    if wrong := [label for label in labels if not 0 <= label < spec.num_classes]:
        raise ArchiveError(f"{what}: label {wrong[0]} is out of range: 0 to {spec.num_classes - 1} are allowed")
    return images.reshape(count, 3, _SIDE, _SIDE), np.array(labels, np.int64)


def _class_names(names: object, spec: Cifar, what: str) -> tuple[str, ...]:
    if type(names) is not list or len(names) != spec.num_classes:
        raise ArchiveError(f"{what}: there is no list {spec.names_key!r} of {spec.num_classes} names")
    texts = [name.decode("ascii", "replace") if type(name) is bytes else name for name in names]
    if not all(type(text) is str and 0 < len(text) <= 64 and text.isprintable() for text in texts):
        raise ArchiveError(f"{what}: {spec.names_key!r} holds something that is not a name")
    if len(set(texts)) != len(texts):
        raise ArchiveError(f"{what}: {spec.names_key!r} names a class twice")
    return tuple(texts)
