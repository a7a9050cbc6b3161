"""Configuration of the documentation."""

import pathlib
import sys

from docutils.nodes import TextElement, paragraph
from sphinx.addnodes import desc_signature, pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import wbengine

sys.path.insert(0, str(pathlib.Path(__file__).parent / "_ext"))

project = "wbengine"
author = "The wbengine developers"
version = release = wbengine.__version__
extensions = ["sphinx.ext.autodoc", "sphinx_click", "myst_parser", "from_code", "llms_index"]
llms_summary = "A workflow engine for Python: undo after failures, continuation after crashes."
html_static_path = ["_static"]
html_theme = "furo"
# Docstrings are read in editors more often than here: names in them stand between single backticks.
default_role = "literal"
autoclass_content = "both"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
# Directives list the members that are public (see reference/public_api).
autodoc_default_options = {"undoc-members": True, "show-inheritance": True}


def unlink_undocumented_type(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, text: TextElement
) -> TextElement | None:
    """Show types in signatures, base classes and aliases without a link if no page documents them.

    Other references without a target are reported by `sphinx-build -n`.
    """
    if node.get("reftype") not in ("class", "obj"):
        return None
    parent = node.parent
    while parent is not None:
        if isinstance(parent, desc_signature) or (
            isinstance(parent, paragraph) and parent.astext().startswith(("Bases:", "alias of "))
        ):
            return text
        parent = parent.parent
    return None


def setup(app: Sphinx) -> None:
    app.connect("missing-reference", unlink_undocumented_type)
