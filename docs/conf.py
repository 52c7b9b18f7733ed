"""How the documentation is built: `make docs`, every warning an error."""

import sys
from pathlib import Path

from sphinx_gallery.sorting import FileNameSortKey

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

from skewconv import __version__  # noqa: E402

project = "skewconv"
author = "The skewconv authors"
copyright = "The skewconv authors, MIT licence"
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
    "plain_docstrings",
    "formulas_as_mathml",
    "pages_stand_alone",
]
html_math_renderer = "mathml"
html_theme = "furo"
html_title = f"skewconv {release}"
html_theme_options = {"navigation_with_keys": True}
html_static_path = ["_static"]
html_css_files = ["pages.css"]
exclude_patterns = ["_ext", "tutorials/*.ipynb", "tutorials/*.py", "sg_execution_times.rst"]

myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 4
# Handlers in the settings of the gallery cannot be pickled, and need not be.
suppress_warnings = ["config.cache"]

autodoc_default_options = {"members": True, "inherited-members": "Module", "member-order": "bysource"}
autodoc_typehints = "none"
# What PyTorch says of extra_repr and the like belongs to PyTorch's pages.
autodoc_inherit_docstrings = False
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Arguments", "params_style")]

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "tutorials",
    "filename_pattern": r"\.py$",
    "within_subsection_order": FileNameSortKey,
    # A tutorial that fails ends the build: this is the test of the tutorials.
    "abort_on_example_error": True,
    "image_scrapers": ("matplotlib",),
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "remove_config_comments": True,
    # Its page of running times asks other sites for its table.
    "write_computation_times": False,
    "plot_gallery": True,
}
