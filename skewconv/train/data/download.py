"""Fetching a file whose checksum is known."""

import hashlib
import http.client
import urllib.error
import urllib.request
from pathlib import Path

from skewconv.train.data.errors import ArchiveError, UnreachableError

_BLOCK = 1 << 20
_TIMEOUT_SECONDS = 30


def download(url: str, path: Path, *, md5: str, limit: int) -> None:
    """Fetch `url` to `path`, at most `limit` bytes, and check what came."""
    digest, total = hashlib.md5(usedforsecurity=False), 0
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer, open(path, "wb") as file:
            while block := answer.read(_BLOCK):
                total += len(block)
                if total > limit:
                    raise ArchiveError(f"{url}: more than {limit} bytes: not the archive expected")
                digest.update(block)
                file.write(block)
    except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
        raise UnreachableError(f"{url} cannot be fetched ({error}): check the network and any proxy") from error
    check_md5(digest.hexdigest(), md5, url)


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
