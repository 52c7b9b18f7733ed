"""Anyone's pictures for a network that is trained already: its classes, its image shape, all files at once."""

from pathlib import Path

import numpy as np

from skewconv.choices import FOLDER
from skewconv.errors import ArgumentError
from skewconv.progress import Tick
from skewconv.train.data import folder
from skewconv.train.data.dataset import Split
from skewconv.train.data.decoding import read_picture
from skewconv.train.data.errors import DataError


def pictures_to_judge(
    data: str,
    classes: tuple[str, ...],
    shape: tuple[int, int, int],
    *,
    resize: bool = False,
    skip_bad: bool = False,
    progress: Tick | None = None,
) -> Split:
    """All pictures of a folder with a folder for each class, as the network sees them; labels are the network's.

    Args:
        data: folder:PATH. Where PATH has test/ (or val/) beside train/, that is taken.
        classes: of the network; every class of the folder must be one of them.
        shape: (C, H, W) of its images.
        resize: fit pictures of other sizes; else they are refused.
        skip_bad: leave out files that cannot be read, and say so.
        progress: called after each picture.
    """
    if not data.startswith(FOLDER) or data == FOLDER:
        raise ArgumentError(f"--data is {data!r}: it must be {FOLDER}PATH, a folder with a folder of images a class")
    path = Path(data.removeprefix(FOLDER)).expanduser().absolute()
    if not path.is_dir():
        raise DataError(f"{path} is not a folder: name one with a folder of images for each class")
    place = folder.half_to_test(path) or path
    names = folder.class_folders(place, least=1)
    if strange := sorted(set(names) - set(classes)):
        raise DataError(
            f"{place} has the class {strange[0]!r}, which the network does not know: "
            f"it knows {', '.join(classes[:20])}{', ...' if len(classes) > 20 else ''}"
        )
    examples = folder.class_examples(place, classes, skip_bad)
    pixels, good, bad = [], [], []
    for count, example in enumerate(examples, 1):
        try:
            pixels.append(read_picture(example.path, str(example.path), shape, resize=resize))
            good.append(example)
        except DataError as error:
            bad.append(str(error))
        if progress is not None:
            progress(count, len(examples))
    if (bad and not skip_bad) or not good:
        raise folder.bad_files(bad or [f"{place} holds no images"])
    folder.say_left_out(bad)
    files = tuple(example.path.relative_to(path).as_posix() for example in good)
    return Split(np.stack(pixels), np.array([example.label for example in good], np.int64), files)
