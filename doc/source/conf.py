"""Configuration of the documentation."""

import wbengine

project = "wbengine"
author = "The wbengine developers"
version = release = wbengine.__version__
extensions = ["sphinx.ext.autodoc"]
html_theme = "furo"
# Docstrings are read in editors more often than here: names in them stand between single backticks.
default_role = "literal"
autoclass_content = "both"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "show-inheritance": True}
