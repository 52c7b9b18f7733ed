"""Image files and folders of them, as pixels and network inputs: one transform for training, prediction and export.

A folder has PATH/train/<class>/* and PATH/test/<class>/*, or PATH/<class>/* to be split.
"""

import hashlib
import io
import logging
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from skewconv.choices import FOLDER, TEST_FRACTION
from skewconv.errors import ArgumentError, SkewconvError
from skewconv.extras import optional
from skewconv.progress import Tick
from skewconv.train.data.dataset import DataError, Entry, Images, Split, stratified_split

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
# Formats in which cameras note the orientation; asking a PNG for it would decode the whole image.
_TURNED_FORMATS = frozenset({"JPEG", "MPO", "TIFF", "WEBP"})
_DEEP_GREY = frozenset({"I;16", "I;16L", "I;16B", "I;16N"})
_GREY = frozenset({"1", "L", "LA"}) | _DEEP_GREY
_COLOUR = frozenset({"P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"})
_SPLIT_SEED = 0
#: test folders beside train; the first that exists is taken
_TEST_NAMES = ("test", "val", "valid", "validation")
_log = logging.getLogger("skewconv")
#: an image file, and the number of its class
Example: TypeAlias = tuple[Path, int]


@contextmanager
def opened(source: Path | bytes, name: str, formats: Sequence[str] = _FORMATS) -> Iterator[Any]:
    """A Pillow image of one of the formats; any failure while it is open becomes a DataError."""
    pil = optional("PIL.Image", "Pillow")
    pil.init()  # registers every format; by itself Pillow does so only once it has failed
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pil.DecompressionBombWarning)
            with pil.open(file, formats=list(formats)) as image:
                yield image
    except SkewconvError:
        raise
    except (pil.DecompressionBombError, pil.DecompressionBombWarning) as error:
        raise DataError(f"{name} has too many pixels ({error}): make it smaller, or remove it") from error
    except Exception as error:  # Pillow's decoders raise many kinds on damaged files
        # An image in memory has no name of its own in Pillow's words.
        reason = f" ({error})" if file is source else ""
        raise DataError(f"{name} cannot be read as an image{reason}: replace or remove it") from error


def look_at(source: Path | bytes, name: str) -> tuple[tuple[int, int], bool]:
    """(height, width) upright, and True for a grey image, from the header alone."""
    with opened(source, name) as image:
        if image.mode not in _GREY | _COLOUR:
            raise DataError(f"{name} has pixels of the kind {image.mode!r}: convert it to 8 or 16 bits a channel")
        if image.format != "MPO" and (frames := getattr(image, "n_frames", 1)) > 1:
            raise DataError(f"{name} has {frames} frames: save the one that is meant as a picture of its own")
        # Orientations 5 to 8 lie on their side.
        aside = image.format in _TURNED_FORMATS and image.getexif().get(0x0112, 1) >= 5
        size = (image.width, image.height) if aside else (image.height, image.width)
        return size, image.mode in _GREY


def decode(source: Path | bytes, name: str, shape: tuple[int, int, int]) -> Images:
    """(C, H, W) of that shape: upright, transparency on white, resized by the shorter side, centre-cropped."""
    channels, height, width = shape
    pil, ops = optional("PIL.Image", "Pillow"), optional("PIL.ImageOps", "Pillow")
    with opened(source, name) as image:
        upright = ops.exif_transpose(image) if image.format in _TURNED_FORMATS else image
        if upright.mode in _DEEP_GREY:
            # 65535 is white: the nearest of 256 levels.
            upright = pil.fromarray(np.rint(np.asarray(upright).astype(np.float64) / 257).astype(np.uint8))
        if upright.mode in ("LA", "PA", "RGBA") or "transparency" in upright.info:
            white = pil.new("RGBA", upright.size, "white")
            white.alpha_composite(upright.convert("RGBA"))
            upright = white
        upright = upright.convert("L" if channels == 1 else "RGB")
        if upright.size != (width, height):
            upright = ops.fit(upright, (width, height), method=pil.Resampling.BICUBIC)
        pixels = np.asarray(upright, np.uint8)
    return np.moveaxis(pixels.reshape(height, width, channels), 2, 0)


def read_picture(source: Path | bytes, name: str, shape: tuple[int, int, int], *, resize: bool = False) -> Images:
    """(C, H, W) pixels of a picture; other sizes need `resize`, since a radius is about the pixels of the network."""
    (height, width), _ = look_at(source, name)
    if (height, width) != shape[1:] and not resize:
        raise DataError(
            f"{name} is {width} x {height} pixels, and the network takes {shape[2]} x {shape[1]}: "
            "resize it, or let it be resized and cropped with --resize"
        )
    return decode(source, name, shape)


def preprocess(pictures: Sequence[Path | str | bytes], shape: tuple[int, int, int], *, resize: bool = False) -> Tensor:
    """(n, C, H, W) float32 in [0, 1]: these pictures as input of a network of images of that shape.

    Each is turned upright, laid on white where it is transparent, made grey or coloured as the shape says, and divided
    by 255. Subtracting the mean is part of the network.

    Args:
        pictures: files, or their bytes.
        shape: (C, H, W), such as ``open_run(path).input_shape``.
        resize: fit pictures of other sizes by the shorter side and crop the centre; else they are refused.
    """
    sources = [Path(picture) if isinstance(picture, str) else picture for picture in pictures]
    names = [f"picture {number}" if isinstance(each, bytes) else str(each) for number, each in enumerate(sources)]
    pixels = [read_picture(each, name, shape, resize=resize) for each, name in zip(sources, names, strict=True)]
    return to_input(np.stack(pixels) if pixels else np.empty((0, *shape), np.uint8))


def to_input(pixels: np.ndarray) -> Tensor:
    """(n, C, H, W) float32 in [0, 1] from pixels of the same shape, uint8."""
    return torch.from_numpy(np.array(pixels)).to(torch.float32).div_(255)


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
    """All pictures of folder:PATH, or of its test/ (or val/) beside train/, as input of a network of these classes."""
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
    pixels, good = read_pictures([file for file, _ in examples], shape, resize, skip_bad, progress)
    files = tuple(examples[index][0].relative_to(path).as_posix() for index in good)
    return Split(pixels, np.array([examples[index][1] for index in good], np.int64), files)


def read_pictures(
    files: Sequence[Path], shape: tuple[int, int, int], resize: bool, skip_bad: bool, progress: Tick | None = None
) -> tuple[Images, list[int]]:
    """(n, C, H, W) pixels of the files that can be read, and their places; `skip_bad` as in :func:`leave_out`."""
    pixels, good, bad = [], [], []
    for index, file in enumerate(files):
        try:
            pixels.append(read_picture(file, str(file), shape, resize=resize))
            good.append(index)
        except DataError as error:
            bad.append(str(error))
        if progress is not None:
            progress(index + 1, len(files))
    leave_out(bad, skip_bad)
    if not good:
        raise DataError("there are no pictures that can be read: add some")
    return np.stack(pixels), good


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
        raise DataError(f"{path} is not a folder: name one with a folder of images for each class, --data folder:PATH")
    return path


def _class_folders(path: Path, least: int = 2) -> tuple[str, ...]:
    classes = tuple(sorted(entry.name for entry in path.iterdir() if entry.is_dir() and not _hidden(entry)))
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
