"""Images for a page: as PNG in the page itself."""

import base64
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skewconv.extras import optional


def data_uri(pixels: NDArray[Any], least_side: int = 0) -> str:
    """A PNG as an address that holds it.

    Args:
        pixels: (1 or 3, H, W) uint8.
        least_side: pixels are repeated until the picture has that side; 0 leaves them.
    """
    times = -(-least_side // max(pixels.shape[1:])) if least_side else 1
    if times > 1:
        pixels = pixels.repeat(times, 1).repeat(times, 2)
    array = pixels[0] if pixels.shape[0] == 1 else np.moveaxis(pixels[:3], 0, 2)
    file = io.BytesIO()
    optional("PIL.Image", "Pillow").fromarray(np.ascontiguousarray(array)).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def stretched(values: NDArray[Any], largest: float | None = None) -> NDArray[np.uint8]:
    """Signed values as pixels: 0 is the middle grey, the largest absolute value is black or white."""
    peak = float(np.abs(values).max(initial=0.0)) if largest is None else largest
    return np.rint(127.5 + 127.5 * np.clip(values / (peak or 1.0), -1, 1)).astype(np.uint8)
