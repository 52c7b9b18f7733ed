"""The errors a user can meet: each message names the value received, what is allowed, and the remedy."""


class SkewconvError(Exception):
    """Every error this library raises on purpose."""


class ArgumentError(SkewconvError, ValueError):
    """An argument whose value is out of range, or contradicts another."""


class ShapeError(ArgumentError):
    """A tensor whose rank or sizes do not fit."""


class DtypeError(SkewconvError, TypeError):
    """A tensor or argument of a kind that does not fit: real for complex, integer for floating, mixed precision."""


class NotSkewError(ArgumentError):
    """A filter or matrix that equals the negative of its (conjugate) transpose was required."""


class NotFiniteError(ArgumentError):
    """A tensor holds NaN or infinity."""


class NormBoundError(ArgumentError):
    """The norm bound given is smaller than the norm it should bound."""


class NotInvertibleError(SkewconvError):
    """The inverse of a map that loses information was asked for."""


class UnboundedModuleError(SkewconvError, TypeError):
    """No Lipschitz bound is known for a module."""


class ExportError(SkewconvError, RuntimeError):
    """A model that cannot be exported as asked, or a file that is not what it should be."""
