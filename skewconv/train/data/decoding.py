"""From an image file, or its bytes, to pixels: (C, H, W) uint8, as training, prediction and the explorer read them."""

from pathlib import Path

import numpy as np

from skewconv.extras import optional
from skewconv.train.data.dataset import Images
from skewconv.train.data.errors import DataError
from skewconv.train.data.pictures import opened

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_FORMATS = ["BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"]
# Where cameras note which way is up; asking a PNG for it would decode the whole image.
_TURNED_FORMATS = frozenset({"JPEG", "MPO", "TIFF", "WEBP"})
_DEEP_GREY = frozenset({"I;16", "I;16L", "I;16B", "I;16N"})
_GREY = frozenset({"1", "L", "LA"}) | _DEEP_GREY
_COLOUR = frozenset({"P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"})


def look_at(source: Path | bytes, name: str) -> tuple[tuple[int, int], bool]:
    """(height, width) the right way up, and whether the image is grey, from the header alone."""
    with opened(source, _FORMATS, name) as image:
        if image.mode not in _GREY | _COLOUR:
            raise DataError(f"{name} has pixels of the kind {image.mode!r}: convert it to 8 or 16 bits a channel")
        if image.format != "MPO" and (frames := getattr(image, "n_frames", 1)) > 1:
            raise DataError(f"{name} has {frames} frames: save the one that is meant as a picture of its own")
        # Orientations 5 to 8 lie on their side.
        aside = image.format in _TURNED_FORMATS and image.getexif().get(0x0112, 1) >= 5
        size = (image.width, image.height) if aside else (image.height, image.width)
        return size, image.mode in _GREY


def decode(source: Path | bytes, name: str, shape: tuple[int, int, int]) -> Images:
    """(C, H, W) of that shape: upright, transparency laid on white, resized by the shorter side, centre-cropped."""
    channels, height, width = shape
    pil, ops = optional("PIL.Image", "Pillow"), optional("PIL.ImageOps", "Pillow")
    with opened(source, _FORMATS, name) as image:
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
    """(C, H, W): a picture for a network that takes images of that shape.

    Args:
        source: the file, or its bytes.
        name: what errors call it.
        shape: of the network's images. One channel takes colours as their grey, three take grey as colour.
        resize: fit pictures of other sizes by the shorter side and crop the centre; else they are refused, since a
            radius speaks of the pixels that the network sees.
    """
    (height, width), _ = look_at(source, name)
    if (height, width) != shape[1:] and not resize:
        raise DataError(
            f"{name} is {width} x {height} pixels, and the network takes {shape[2]} x {shape[1]}: "
            "resize it, or let it be resized and cropped with --resize"
        )
    return decode(source, name, shape)
