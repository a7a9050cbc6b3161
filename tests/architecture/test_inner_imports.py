"""Number of imports of wbengine inside functions."""

from __future__ import annotations

import ast
import pathlib
import re

from . import imports

MAX_INNER_IMPORTS = 117

#: Files without such a line have no inner imports, and are not parsed.
INDENTED = re.compile(r"^[ \t]+(from\s+(\.|wbengine\b)|import\b.*\bwbengine\b)", re.MULTILINE)

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def inner_imports(text: str) -> set[int]:
    """Return the lines of imports of wbengine inside functions."""
    tree = ast.parse(text) if INDENTED.search(text) else ast.Module([], [])
    return {
        node.lineno
        for function in ast.walk(tree)
        if isinstance(function, FUNCTIONS)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom) and imports_wbengine(node)
    }


def imports_wbengine(node: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.level > 0 or (node.module or "").split(".")[0] == "wbengine"
    return any(alias.name.split(".")[0] == "wbengine" for alias in node.names)


def test_package_has_few_inner_imports() -> None:
    paths = pathlib.Path(imports.ROOT / "wbengine").rglob("*.py")
    count = sum(len(inner_imports(path.read_text(encoding="utf-8"))) for path in paths)
    assert count <= MAX_INNER_IMPORTS


def test_only_inner_imports_of_wbengine_are_counted() -> None:
    text = (
        "from wbengine import a\n"
        "def f():\n"
        "    import json\n"
        "    from wbengine.b import c\n"
        "    def g():\n"
        "        from . import d\n"
        "        import wbengine.e\n"
    )
    assert inner_imports(text) == {4, 6, 7}
