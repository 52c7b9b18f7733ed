"""Fetching a file whose checksum is known."""

import hashlib
import http.client
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from skewconv.train.data.errors import ArchiveError, UnreachableError

_BLOCK = 1 << 20
_TIMEOUT_SECONDS = 30


def download(url: str, path: Path, *, md5: str, limit: int) -> None:
    """Fetch `url` to `path`, at most `limit` bytes, and check what came."""
    digest, total = hashlib.md5(usedforsecurity=False), 0
    with open(path, "wb") as file:
        for block in _blocks(url):
            total += len(block)
            if total > limit:
                raise ArchiveError(f"{url}: more than {limit} bytes: not the archive expected")
            digest.update(block)
            file.write(block)
    check_md5(digest.hexdigest(), md5, url)


def _blocks(url: str) -> Iterator[bytes]:
    # A generator of its own: a full disk in the caller is not mistaken for a fault of the network.
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer:
            while block := answer.read(_BLOCK):
                yield block
    except (OSError, http.client.HTTPException) as error:
        raise UnreachableError(f"{url} cannot be fetched ({error}): check the network and any proxy") from error


def md5_of(path: Path) -> str:
    """The MD5 of a file. It tells accidents and other archives apart; what guards against malice is how we read."""
    digest = hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def check_md5(found: str, expected: str, what: str) -> None:
    """Refuse a file whose checksum is another."""
    if found != expected:
        raise ArchiveError(
            f"{what}: the checksum is {found}, the official archive's is {expected}: "
            "it is truncated, damaged or another file; get it again"
        )
