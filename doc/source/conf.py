"""Configuration of the documentation."""

import pathlib
import sys

import wbengine

sys.path.insert(0, str(pathlib.Path(__file__).parent / "_ext"))

project = "wbengine"
author = "The wbengine developers"
version = release = wbengine.__version__
extensions = ["sphinx.ext.autodoc", "sphinx_click", "myst_parser", "from_code"]
html_static_path = ["_static"]
html_theme = "furo"
# Docstrings are read in editors more often than here: names in them stand between single backticks.
default_role = "literal"
autoclass_content = "both"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "show-inheritance": True}
