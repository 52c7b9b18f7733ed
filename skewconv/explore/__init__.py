"""A page on this machine where a person attacks images and sees what certificates promise."""

from skewconv.explore.server import build_app, serve
from skewconv.explore.subject import Subject, open_subjects

__all__ = ["Subject", "build_app", "open_subjects", "serve"]
