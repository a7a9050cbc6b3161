"""Names and summaries of operations, without importing their modules."""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
from importlib.abc import InspectLoader
from importlib.machinery import PathFinder
from typing import Final

__all__ = ["first_paragraph", "module_of", "names", "summary"]

_DEFINITIONS: Final = f"{__package__}._definitions"


@functools.cache
def names() -> tuple[str, ...]:
    """Return the names of all operations, ordered: `flow cancel`."""
    modules = pkgutil.iter_modules(_folders())
    return tuple(sorted(module.name.replace("_", " ") for module in modules))


def module_of(name: str) -> str:
    return f"{_DEFINITIONS}.{name.replace(' ', '_')}"


def summary(name: str) -> str:
    """Return the first paragraph of the docstring of an operation, read from its source.

    The import of all operations would take a second.
    """
    module = module_of(name)
    spec = PathFinder.find_spec(module, _folders())
    assert spec is not None and isinstance(spec.loader, InspectLoader)
    for node in ast.parse(spec.loader.get_source(module) or "").body:
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            return first_paragraph(ast.get_docstring(node) or "")
    return ""


def first_paragraph(text: str) -> str:
    """Return the first paragraph of a docstring as one line."""
    return " ".join(text.partition("\n\n")[0].split())


def _folders() -> list[str]:
    return list(importlib.import_module(_DEFINITIONS).__path__)
