"""Anyone's own images: PATH/train/<class>/* and PATH/test/<class>/*, or PATH/<class>/* to be split."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from skewconv.choices import TEST_FRACTION
from skewconv.errors import ArgumentError
from skewconv.train.data.cache import EntryWriter
from skewconv.train.data.dataset import Augmentation
from skewconv.train.data.decoding import SUFFIXES, decode, look_at
from skewconv.train.data.errors import DataError
from skewconv.train.data.splits import stratified_split

_SPLIT_SEED = 0


@dataclass(frozen=True)
class Example:
    """One image file and its class."""

    path: Path
    label: int


@dataclass(frozen=True)
class ImageFolder:
    """A folder whose files are listed, sorted and split, but not yet read."""

    path: Path
    classes: tuple[str, ...]
    train: tuple[Example, ...]
    test: tuple[Example, ...]
    size: int | None

    def fingerprint(self) -> str:
        """Names the content: paths, sizes and dates of all files, and the options."""
        digest = hashlib.sha256(f"{self.path}\n{self.size}\n".encode())
        for split in (self.train, self.test):
            digest.update(b"split\n")
            for example in split:
                facts = example.path.stat()
                digest.update(f"{example.path.relative_to(self.path)}\0{facts.st_size} {facts.st_mtime_ns}\n".encode())
        return digest.hexdigest()[:20]

    def build(self, writer: EntryWriter) -> None:
        """Decode every image into the cache entry."""
        facts = {example.path: look_at(example.path, str(example.path)) for example in (*self.train, *self.test)}
        channels = 1 if all(grey for _, grey in facts.values()) else 3
        height, width = self._common_size({path: size for path, (size, _) in facts.items()})
        for split, examples in (("train", self.train), ("test", self.test)):
            images = writer.images(split, (len(examples), channels, height, width))
            for index, example in enumerate(examples):
                images[index] = decode(example.path, str(example.path), (channels, height, width))
            writer.labels(split, [example.label for example in examples])
        writer.describe(self.classes, Augmentation())

    def _common_size(self, sizes: dict[Path, tuple[int, int]]) -> tuple[int, int]:
        if self.size is not None:
            return self.size, self.size
        (first, expected), *rest = sizes.items()
        for path, size in rest:
            if size != expected:
                raise DataError(
                    f"{path} is {size[1]} x {size[0]} pixels, {first} is {expected[1]} x {expected[0]}: "
                    "give a size, to which all will be resized and cropped"
                )
        return expected


def scan(path: Path, *, size: int | None, test_fraction: float) -> ImageFolder:
    """List a folder of images.

    Args:
        path: holds train/<class>/* and test/<class>/*, or <class>/*.
        size: the side all images are resized (shorter side) and centre-cropped to; None if they are alike already.
        test_fraction: of each class, where the folder itself has no split.
    """
    if size is not None and size < 1:
        raise ArgumentError(f"--size is {size}: it must be at least 1 pixel")
    if not 0 < test_fraction < 1:
        raise ArgumentError(f"--test-fraction is {test_fraction}: it must lie between 0 and 1")
    path = path.expanduser().absolute()
    if not path.is_dir():
        raise DataError(f"{path} is not a folder: name one with a folder of images for each class")
    halves = [half for half in ("train", "test") if (path / half).is_dir()]
    if len(halves) == 1:
        raise DataError(f"{path} has a folder {halves[0]!r} alone: have both train and test, or the classes only")
    if halves:
        if test_fraction != TEST_FRACTION:
            raise ArgumentError(f"--test-fraction is {test_fraction}, but {path} has a split of its own; leave it out")
        classes = _folders(path / "train")
        if strange := sorted(set(_folders(path / "test")) - set(classes)):
            raise DataError(f"{path / 'test'} has the class {strange[0]!r}, which is not in train: {list(classes)}")
        train, test = (tuple(_examples(path / half, classes)) for half in ("train", "test"))
        return ImageFolder(path, classes, train, test, size)
    classes = _folders(path)
    examples = list(_examples(path, classes))
    keys = [example.path.relative_to(path).as_posix() for example in examples]
    labels = [example.label for example in examples]
    chosen = stratified_split(keys, labels, test_fraction, _SPLIT_SEED)
    train, test = (tuple(examples[index] for index in indices) for indices in chosen)
    return ImageFolder(path, classes, train, test, size)


def _folders(path: Path) -> tuple[str, ...]:
    classes = tuple(sorted(entry.name for entry in path.iterdir() if entry.is_dir() and not _hidden(entry)))
    if len(classes) < 2:
        raise DataError(f"{path} has {len(classes)} class folders: at least two are needed, each with its images")
    return classes


def _examples(path: Path, classes: Iterable[str]) -> Iterable[Example]:
    """The images of each class; what is left out would be missed, so anything unexpected is an error."""
    for label, name in enumerate(classes):
        if not (path / name).is_dir():
            continue
        found = sorted(entry for entry in (path / name).iterdir() if not _hidden(entry))
        for entry in found:
            if entry.is_dir():
                raise DataError(f"{entry} is a folder inside a class: put the images into the class folder itself")
            if entry.suffix.lower() not in SUFFIXES:
                raise DataError(f"{entry} is no image: remove it; allowed are {' '.join(SUFFIXES)}")
            yield Example(entry, label)
        if not found:
            raise DataError(f"{path / name} is empty: add images or remove the class")


def _hidden(entry: Path) -> bool:
    return entry.name.startswith(".") or entry.name in ("Thumbs.db", "desktop.ini")
