"""Anyone's own images: PATH/train/<class>/* and PATH/test/<class>/*, or PATH/<class>/* to be split."""

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from skewconv.choices import TEST_FRACTION
from skewconv.errors import ArgumentError
from skewconv.train.data.cache import EntryWriter
from skewconv.train.data.dataset import Augmentation
from skewconv.train.data.decoding import SUFFIXES, decode, look_at
from skewconv.train.data.errors import DataError
from skewconv.train.data.splits import stratified_split

_SPLIT_SEED = 0
#: folders beside train that hold the images to test on; the first that is there
_TEST_NAMES = ("test", "val", "valid", "validation")
_log = logging.getLogger("skewconv")


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
    skip_bad: bool = False

    def fingerprint(self) -> str:
        """Names the content: paths, sizes and dates of all files, and the options."""
        digest = hashlib.sha256(f"{self.path}\n{self.size}\n{self.skip_bad}\n".encode())
        for split in (self.train, self.test):
            digest.update(b"split\n")
            for example in split:
                facts = example.path.stat()
                digest.update(f"{example.path.relative_to(self.path)}\0{facts.st_size} {facts.st_mtime_ns}\n".encode())
        return digest.hexdigest()[:20]

    def build(self, writer: EntryWriter) -> None:
        """Decode every image into the cache entry; what cannot be read is listed, all at once, or left out."""
        self.refuse_empty_classes()
        if bad := self._write(writer):
            if not self.skip_bad:
                raise bad_files(list(bad.values()))
            say_left_out(bad.values())
            rest = self.without(bad)
            rest.refuse_empty_classes()
            if rest._write(writer):
                raise DataError(f"{self.path} changes while it is read: try again when it is quiet")

    def refuse_empty_classes(self) -> None:
        """A class without an image to train on would be an output that nothing teaches."""
        if empty := sorted(set(range(len(self.classes))) - {example.label for example in self.train}):
            name = self.classes[empty[0]]
            raise DataError(f"{self.path} has no image of {name!r} left to train on: add some, or remove the class")

    def without(self, bad: Iterable[Path]) -> "ImageFolder":
        """The folder without some of its files."""
        left_out = set(bad)
        train, test = (tuple(e for e in examples if e.path not in left_out) for examples in (self.train, self.test))
        return replace(self, train=train, test=test)

    def _write(self, writer: EntryWriter) -> dict[Path, str]:
        """Decode into the cache entry: the files that could not be read, and why; the entry is then useless."""
        bad: dict[Path, str] = {}
        facts: dict[Path, tuple[tuple[int, int], bool]] = {}
        for example in (*self.train, *self.test):
            try:
                facts[example.path] = look_at(example.path, str(example.path))
            except DataError as error:
                bad[example.path] = str(error)
        if not facts:
            return bad
        channels = 1 if all(grey for _, grey in facts.values()) else 3
        height, width = self._common_size({path: size for path, (size, _) in facts.items()})
        for split, examples in (("train", self.train), ("test", self.test)):
            images = writer.images(split, (len(examples), channels, height, width))
            for index, example in enumerate(examples):
                try:
                    images[index] = decode(example.path, str(example.path), (channels, height, width))
                except DataError as error:
                    bad.setdefault(example.path, str(error))
            writer.labels(split, [example.label for example in examples])
            writer.files(split, [example.path.relative_to(self.path).as_posix() for example in examples])
        writer.describe(self.classes, Augmentation())
        return bad

    def _common_size(self, sizes: dict[Path, tuple[int, int]]) -> tuple[int, int]:
        if self.size is not None:
            return self.size, self.size
        (first, expected), *rest = sizes.items()
        if other := [(path, size) for path, size in rest if size != expected]:
            path, size = other[0]
            more = f" (and {len(other) - 1} more files are of another size)" if len(other) > 1 else ""
            raise DataError(
                f"{path} is {size[1]} x {size[0]} pixels, {first} is {expected[1]} x {expected[0]}{more}: "
                "give --size, to which all will be resized and cropped"
            )
        return expected


def scan(path: Path, *, size: int | None, test_fraction: float, skip_bad: bool = False) -> ImageFolder:
    """List a folder of images.

    Args:
        path: holds train/<class>/* and test/<class>/*, or <class>/*.
        size: the side all images are resized (shorter side) and centre-cropped to; None if they are alike already.
        test_fraction: of each class, where the folder itself has no split.
        skip_bad: leave out what is no image, or cannot be read, and say so.
    """
    if size is not None and size < 1:
        raise ArgumentError(f"--size is {size}: it must be at least 1 pixel")
    if not 0 < test_fraction < 1:
        raise ArgumentError(f"--test-fraction is {test_fraction}: it must lie between 0 and 1")
    path = path.expanduser().absolute()
    if not path.is_dir():
        raise DataError(f"{path} is not a folder: name one with a folder of images for each class")
    halves = [half for half in ("train", *_TEST_NAMES) if (path / half).is_dir()]
    if halves and (halves[0] != "train" or len(halves) == 1):
        raise DataError(f"{path} has a folder {halves[0]!r} alone: have both train and test, or the classes only")
    if halves:
        _, test_name, *unused = halves
        if unused:
            _log.warning("%s is left out: %s has the images to test on", path / unused[0], path / test_name)
        if test_fraction != TEST_FRACTION:
            raise ArgumentError(f"--test-fraction is {test_fraction}, but {path} has a split of its own; leave it out")
        classes = class_folders(path / "train")
        if strange := sorted(set(class_folders(path / test_name)) - set(classes)):
            raise DataError(f"{path / test_name} has the class {strange[0]!r}, which is not in train: {list(classes)}")
        train, test = (tuple(class_examples(path / half, classes, skip_bad)) for half in ("train", test_name))
        return ImageFolder(path, classes, train, test, size, skip_bad)
    classes = class_folders(path)
    examples = class_examples(path, classes, skip_bad)
    keys = [example.path.relative_to(path).as_posix() for example in examples]
    labels = [example.label for example in examples]
    chosen = stratified_split(keys, labels, test_fraction, _SPLIT_SEED)
    train, test = (tuple(examples[index] for index in indices) for indices in chosen)
    return ImageFolder(path, classes, train, test, size, skip_bad)


def class_folders(path: Path, least: int = 2) -> tuple[str, ...]:
    """The names of the folders in a folder, sorted: one a class, and at least so many."""
    classes = tuple(sorted(entry.name for entry in path.iterdir() if entry.is_dir() and not _hidden(entry)))
    if strange := [name for name in classes if not _is_text(name)]:
        raise DataError(f"{path} has a folder {strange[0]!a}, whose name is no text in UTF-8: rename it")
    if len(classes) < least:
        few = {1: "one is", 2: "two are"}[least]
        raise DataError(f"{path} has {len(classes)} class folders: at least {few} needed, each with its images")
    return classes


def class_examples(path: Path, classes: Sequence[str], skip_bad: bool = False) -> list[Example]:
    """The images of each class; what is left out would be missed, so anything unexpected is an error."""
    found, bad = [], []
    for label, name in enumerate(classes):
        if not (path / name).is_dir():
            continue
        entries = sorted(entry for entry in (path / name).iterdir() if not _hidden(entry))
        for entry in entries:
            if not _is_text(entry.name):
                bad.append(f"{str(entry)!a} has a name that is no text in UTF-8: rename it")
            elif entry.is_dir():
                bad.append(f"{entry} is a folder inside a class: put the images into the class folder itself")
            elif entry.suffix.lower() not in SUFFIXES:
                bad.append(f"{entry} is no image: remove it; allowed are {' '.join(SUFFIXES)}")
            elif not entry.is_file():
                bad.append(f"{entry} is no file, or a link to nothing: remove it")
            else:
                found.append(Example(entry, label))
        if not entries:
            raise DataError(f"{path / name} is empty: add images or remove the class")
    if bad and not skip_bad:
        raise bad_files(bad)
    say_left_out(bad)
    return found


def bad_files(reasons: Sequence[str]) -> DataError:
    """One error that lists all files that are in the way."""
    if len(reasons) == 1:
        return DataError(f"{reasons[0]}; or go on without it: --skip-bad")
    title = f"{len(reasons)} files are in the way; mend or remove them, or go on without them with --skip-bad:"
    return DataError("\n  ".join([title, *reasons]))


def say_left_out(reasons: Iterable[str]) -> None:
    """Name each file that was left out, and why."""
    for reason in reasons:
        _log.warning("left out: %s", reason)


def half_to_test(path: Path) -> Path | None:
    """The folder beside train/ that holds the images to test on; None if there is no such split."""
    halves = [half for half in _TEST_NAMES if (path / half).is_dir()]
    return path / halves[0] if halves and (path / "train").is_dir() else None


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _hidden(entry: Path) -> bool:
    return entry.name.startswith(".") or entry.name in ("Thumbs.db", "desktop.ini")
