"""Models for inference: frozen once, fast ever after."""

from skewconv.frozen.freeze import FrozenModel, freeze
from skewconv.frozen.store import load_frozen, save_frozen

__all__ = ["FrozenModel", "freeze", "load_frozen", "save_frozen"]
