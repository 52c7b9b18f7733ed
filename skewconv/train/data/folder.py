"""Folders of images: PATH/train/<class>/* and PATH/test/<class>/*, or PATH/<class>/* to be split."""

import hashlib
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from skewconv.choices import FOLDER, TEST_FRACTION
from skewconv.errors import ArgumentError
from skewconv.progress import Tick
from skewconv.train.data.dataset import DataError, Entry, Split, stratified_split
from skewconv.train.data.images import SUFFIXES, decode, look_at, read_picture

_SPLIT_SEED = 0
#: test folders beside train; the first that exists is taken
_TEST_NAMES = ("test", "val", "valid", "validation")
_log = logging.getLogger("skewconv")


#: an image file, and the number of its class
Example: TypeAlias = tuple[Path, int]


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
        """A hash of paths, sizes and dates of all files, and of the options."""
        digest = hashlib.sha256(f"{self.path}\n{self.size}\n{self.skip_bad}\n".encode())
        for split in (self.train, self.test):
            digest.update(b"split\n")
            for file, _ in split:
                facts = file.stat()
                digest.update(f"{file.relative_to(self.path)}\0{facts.st_size} {facts.st_mtime_ns}\n".encode())
        return digest.hexdigest()[:20]

    def build(self, entry: Entry) -> None:
        """Decode every image into the cache entry; unreadable files are all listed in one error, or left out."""
        self._refuse_empty_classes()
        if bad := self._write(entry):
            leave_out(bad.values(), self.skip_bad)
            train, test = (tuple(e for e in split if e[0] not in bad) for split in (self.train, self.test))
            rest = replace(self, train=train, test=test)
            rest._refuse_empty_classes()
            if rest._write(entry):
                raise DataError(f"{self.path} changes while it is read: try again when it is quiet")

    def _refuse_empty_classes(self) -> None:
        if empty := sorted(set(range(len(self.classes))) - {label for _, label in self.train}):
            name = self.classes[empty[0]]
            raise DataError(f"{self.path} has no image of {name!r} left to train on: add some, or remove the class")

    def _write(self, entry: Entry) -> dict[Path, str]:
        """Decode into the cache entry; returns unreadable files with the reasons, and then the entry is useless."""
        bad: dict[Path, str] = {}
        facts: dict[Path, tuple[tuple[int, int], bool]] = {}
        for file, _ in (*self.train, *self.test):
            try:
                facts[file] = look_at(file, str(file))
            except DataError as error:
                bad[file] = str(error)
        if not facts:
            return bad
        channels = 1 if all(grey for _, grey in facts.values()) else 3
        height, width = self._common_size({path: size for path, (size, _) in facts.items()})
        for split, examples in (("train", self.train), ("test", self.test)):
            images = entry.images(split, (len(examples), channels, height, width))
            for index, (file, _) in enumerate(examples):
                try:
                    images[index] = decode(file, str(file), (channels, height, width))
                except DataError as error:
                    bad.setdefault(file, str(error))
            files = [file.relative_to(self.path).as_posix() for file, _ in examples]
            entry.labels(split, [label for _, label in examples], files)
        entry.classes = self.classes
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
    """The files of a folder with train/<class>/* and test/<class>/*, or <class>/*; see `load_dataset`."""
    path = _existing(path)
    halves = [half for half in ("train", *_TEST_NAMES) if (path / half).is_dir()]
    if halves and (halves[0] != "train" or len(halves) == 1):
        raise DataError(f"{path} has a folder {halves[0]!r} alone: have both train and test, or the classes only")
    if halves:
        _, test_name, *unused = halves
        if unused:
            _log.warning("%s is left out: %s has the images to test on", path / unused[0], path / test_name)
        if test_fraction != TEST_FRACTION:
            raise ArgumentError(f"--test-fraction is {test_fraction}, but {path} has a split of its own; leave it out")
        classes = _class_folders(path / "train")
        if strange := sorted(set(_class_folders(path / test_name)) - set(classes)):
            raise DataError(f"{path / test_name} has the class {strange[0]!r}, which is not in train: {list(classes)}")
        train, test = (tuple(_class_examples(path / half, classes, skip_bad)) for half in ("train", test_name))
        return ImageFolder(path, classes, train, test, size, skip_bad)
    classes = _class_folders(path)
    examples = _class_examples(path, classes, skip_bad)
    keys, labels = [file.relative_to(path).as_posix() for file, _ in examples], [classes[k] for _, k in examples]
    chosen = stratified_split(keys, labels, test_fraction, _SPLIT_SEED)
    train, test = (tuple(examples[index] for index in indices) for indices in chosen)
    return ImageFolder(path, classes, train, test, size, skip_bad)


def labelled_pictures(
    data: str,
    classes: tuple[str, ...],
    shape: tuple[int, int, int],
    *,
    resize: bool = False,
    skip_bad: bool = False,
    progress: Tick | None = None,
) -> Split:
    """All pictures of folder:PATH, or of its test/ (or val/) beside train/, as input of a network of these classes.

    Every class of the folder must be one of the network's. See `read_picture` for `resize`.
    """
    if not data.startswith(FOLDER) or data == FOLDER:
        raise ArgumentError(f"--data is {data!r}: it must be {FOLDER}PATH, a folder with a folder of images a class")
    path = _existing(Path(data.removeprefix(FOLDER)))
    halves = [path / half for half in _TEST_NAMES if (path / half).is_dir()]
    place = halves[0] if halves and (path / "train").is_dir() else path
    if strange := sorted(set(_class_folders(place, least=1)) - set(classes)):
        raise DataError(
            f"{place} has the class {strange[0]!r}, which the network does not know: "
            f"it knows {', '.join(classes[:20])}{', ...' if len(classes) > 20 else ''}"
        )
    examples = _class_examples(place, classes, skip_bad)
    pixels, good, bad = [], [], []
    for count, (file, label) in enumerate(examples, 1):
        try:
            pixels.append(read_picture(file, str(file), shape, resize=resize))
            good.append((file, label))
        except DataError as error:
            bad.append(str(error))
        if progress is not None:
            progress(count, len(examples))
    leave_out(bad, skip_bad)
    if not good:
        raise DataError(f"{place} holds no images that can be read: add some")
    files = tuple(file.relative_to(path).as_posix() for file, _ in good)
    return Split(np.stack(pixels), np.array([label for _, label in good], np.int64), files)


def leave_out(reasons: Collection[str], skip_bad: bool) -> None:
    """Log each unreadable file, and why, with `skip_bad`; else raise one error that lists all of them."""
    if reasons and not skip_bad:
        title = f"{len(reasons)} files are in the way; mend or remove them, or go on without them with --skip-bad:"
        alone = f"{next(iter(reasons))}; or go on without it: --skip-bad"
        raise DataError(alone if len(reasons) == 1 else "\n  ".join([title, *reasons]))
    for reason in reasons:
        _log.warning("left out: %s", reason)


def _existing(path: Path) -> Path:
    path = path.expanduser().absolute()
    if not path.is_dir():
        raise DataError(f"{path} is not a folder: name one with a folder of images for each class")
    return path


def _class_folders(path: Path, least: int = 2) -> tuple[str, ...]:
    """The names of the class folders in a folder, sorted: at least this many."""
    classes = tuple(sorted(entry.name for entry in path.iterdir() if entry.is_dir() and not _hidden(entry)))
    if strange := [name for name in classes if not _is_text(name)]:
        raise DataError(f"{path} has a folder {strange[0]!a}, whose name is no text in UTF-8: rename it")
    if len(classes) < least:
        there = f"one class folder, {classes[0]!r}" if classes else "no class folders"
        few = {1: "one is", 2: "two are"}[least]
        raise DataError(f"{path} has {there}: at least {few} needed, each with the images of its class")
    return classes


def _class_examples(path: Path, classes: Sequence[str], skip_bad: bool = False) -> list[Example]:
    """The images of each class; anything unexpected is an error, or logged."""
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
                found.append((entry, label))
        if not entries:
            raise DataError(f"{path / name} is empty: add images or remove the class")
    leave_out(bad, skip_bad)
    return found


def _is_text(name: str) -> bool:
    return name == name.encode(errors="replace").decode()


def _hidden(entry: Path) -> bool:
    return entry.name.startswith(".") or entry.name in ("Thumbs.db", "desktop.ini")
