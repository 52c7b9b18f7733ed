"""A page on this machine to attack images by hand, beside their certified radii."""

from skewconv.explore.model import ExploredModel, open_models
from skewconv.explore.server import build_app, serve_page

__all__ = ["ExploredModel", "build_app", "open_models", "serve_page"]
