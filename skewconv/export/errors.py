"""What can go wrong with an export."""

from skewconv.errors import SkewconvError


class ExportError(SkewconvError):
    """A model that cannot be exported as asked, or a file that is not what it should be."""
