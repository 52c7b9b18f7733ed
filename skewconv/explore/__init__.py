"""A page on this machine to attack images by hand, beside the radii that certificates promise."""

from skewconv.explore.model import ExploredModel, open_models
from skewconv.explore.server import build_app, listen, serve

__all__ = ["ExploredModel", "build_app", "listen", "open_models", "serve"]
