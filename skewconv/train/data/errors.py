"""What can go wrong with data."""

from skewconv.errors import SkewconvError


class DataError(SkewconvError):
    """A dataset that cannot be found, read or kept."""


class ArchiveError(DataError):
    """An archive, or a file in it, that is damaged, hostile, or not what its name says."""


class UnreachableError(DataError):
    """A server that did not answer: the network, not the data, is at fault."""
