"""Reading a tar archive that nobody vouches for: nothing is ever extracted to the disk."""

import gzip
import io
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from skewconv.train.data.errors import ArchiveError

_MAX_MEMBERS = 10_000


def read_members(path: Path, wanted: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    """The wanted members of a .tar.gz, each as (name, bytes), in the archive's order.

    The whole archive is walked and any member that is not a plain file or folder with a harmless name is refused,
    wanted or not: an archive with one such member is not the one it claims to be.

    Args:
        path: the archive.
        wanted: the names to read, each with the most bytes it may hold. Every one must be there, once.
    """
    # Beside the wanted members, archives hold a readme or so; 16 MiB is generous, and far from a bomb.
    limit = sum(wanted.values()) + (16 << 20)
    seen: set[str] = set()
    try:
        with gzip.open(path, "rb") as unpacked:
            stream = _Limited(unpacked, limit, path.name)
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for count, member in enumerate(archive):
                    if count >= _MAX_MEMBERS:
                        raise ArchiveError(f"{path.name}: more than {_MAX_MEMBERS} members: not the archive expected")
                    _check_member(member, path.name)
                    if member.name not in wanted:
                        continue
                    if member.name in seen:
                        raise ArchiveError(f"{path.name}: {member.name} occurs twice: not the archive expected")
                    seen.add(member.name)
                    yield member.name, _read(archive, member, wanted[member.name], path.name)
            stream.drain()
    except ArchiveError:
        raise
    except Exception as error:  # on spoilt headers tarfile raises more kinds than its own
        raise ArchiveError(f"{path.name}: truncated or damaged ({error}): get the archive again") from error
    if missing := sorted(set(wanted) - seen):
        raise ArchiveError(f"{path.name}: {', '.join(missing)} missing: not the archive expected")


def _check_member(member: tarfile.TarInfo, archive: str) -> None:
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts or "\\" in member.name or ":" in member.name or "\0" in member.name:
        raise ArchiveError(f"{archive}: the member {member.name!r} would leave its folder: the archive is hostile")
    if member.issym() or member.islnk():
        raise ArchiveError(f"{archive}: the member {member.name!r} is a link: only plain files are allowed")
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE) or member.sparse is not None:
        raise ArchiveError(
            f"{archive}: the member {member.name!r} is a device or the like: only plain files are allowed"
        )


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo, limit: int, name: str) -> bytes:
    if member.size > limit:
        raise ArchiveError(f"{name}: {member.name} holds {member.size} bytes, at most {limit} are allowed")
    file = archive.extractfile(member)
    if file is None:
        raise ArchiveError(f"{name}: {member.name} is not a file")
    return file.read()


class _Limited(io.BufferedIOBase):
    """A reader that stops a bomb by counting what really comes out, whatever the headers announce."""

    def __init__(self, stream: gzip.GzipFile, limit: int, name: str) -> None:
        self._stream, self._left, self._limit, self._name = stream, limit, limit, name

    def read(self, size: int | None = -1, /) -> bytes:
        most = self._left + 1
        block = self._stream.read(most if size is None or size < 0 else min(size, most))
        self._left -= len(block)
        if self._left < 0:
            raise ArchiveError(f"{self._name}: unpacks to more than {self._limit} bytes: not the archive expected")
        return block

    def drain(self) -> None:
        """Read to the end, where gzip keeps the checksum."""
        while self.read(1 << 20):
            pass
