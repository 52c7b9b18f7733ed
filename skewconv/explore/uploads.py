"""Pictures that a person drops on the page: bounded before they are read, decoded with care, kept nowhere."""

from collections.abc import AsyncIterator

from skewconv.errors import SkewconvError
from skewconv.train.data.dataset import Images
from skewconv.train.data.images import look_at, read_picture

MOST_BYTES = 10_000_000
MOST_PIXELS = 25_000_000


class TooLargeError(SkewconvError):
    """A body that is larger than what is taken."""


async def bounded(stream: AsyncIterator[bytes], length: str | None, most: int = MOST_BYTES) -> bytes:
    """The body of a request, of which no more than ``most`` bytes are ever held.

    Args:
        stream: its chunks as they come.
        length: what the request says of its length, if it does; a larger one is refused before anything is read.
        most: bytes.
    """
    refusal = f"the file has more than {most / 1e6:g} MB: make it smaller"
    if length is not None and (not length.isdigit() or int(length) > most):
        raise TooLargeError(refusal)
    found = bytearray()
    async for chunk in stream:
        found += chunk
        if len(found) > most:
            raise TooLargeError(refusal)
    return bytes(found)


def decoded(content: bytes, shape: tuple[int, int, int]) -> tuple[Images, str]:
    """The picture as the network takes it, (C, H, W) uint8, and a sentence on what was done to it."""
    name = "the file"
    (height, width), _ = look_at(content, name)
    if height * width > MOST_PIXELS:
        raise TooLargeError(f"{name} has {width} x {height} pixels, more than {MOST_PIXELS:,}: make it smaller")
    pixels = read_picture(content, name, shape, resize=True)
    same = (height, width) == shape[1:]
    note = f"{width} x {height} pixels" if same else f"resized and cropped from {width} x {height} pixels"
    return pixels, note
