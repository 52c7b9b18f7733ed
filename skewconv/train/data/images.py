"""From image files, or their bytes, to pixels and network inputs: one transform for training, prediction and export."""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skewconv.errors import SkewconvError
from skewconv.extras import optional
from skewconv.train.data.dataset import DataError, Images

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
# Formats in which cameras note the orientation; asking a PNG for it would decode the whole image.
_TURNED_FORMATS = frozenset({"JPEG", "MPO", "TIFF", "WEBP"})
_DEEP_GREY = frozenset({"I;16", "I;16L", "I;16B", "I;16N"})
_GREY = frozenset({"1", "L", "LA"}) | _DEEP_GREY
_COLOUR = frozenset({"P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"})


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
    """(C, H, W) pixels of a picture, file or bytes, called `name` in errors, for a network of images of that shape.

    Pictures of other sizes are refused without `resize`, since a radius is about the pixels that the network sees.
    """
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
