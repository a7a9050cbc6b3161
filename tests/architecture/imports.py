"""Imports between modules, read from the source."""

from __future__ import annotations

import ast
import functools
import pathlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).parents[2]


@dataclass(frozen=True)
class Import:
    """Module `source` imports module `target` at a line of a file."""

    source: str
    target: str
    path: pathlib.Path
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.source} imports {self.target}"


def modules(package: pathlib.Path) -> dict[str, pathlib.Path]:
    """Return dotted name -> file of each module of a package folder."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(
    found: Mapping[str, pathlib.Path],
    sources: Mapping[str, pathlib.Path] | None = None,
    *,
    for_types: bool = False,
) -> list[Import]:
    """Return all imports of one of the modules by another, also inside functions.

    With `sources`, only these modules are read. Imports for type checking are included only with
    `for_types`. Implicit imports of parent packages are not included: `__init__` files are separate
    modules with their own imports.
    """
    edges = []
    for source, path in (found if sources is None else sources).items():
        package = source if path.name == "__init__.py" else source.rpartition(".")[0]
        for name, line in _imported(path.read_text(encoding="utf-8"), package, for_types):
            target = _module(name, found)
            if target is not None and target != source:
                edges.append(Import(source, target, path, line))
    return edges


@functools.cache
def _imported(text: str, package: str, for_types: bool) -> list[tuple[str, int]]:
    """Return the dotted names that a module imports with their lines; cached."""
    nodes = _nodes(ast.parse(text), for_types)
    return [(name, node.lineno) for node in nodes for name in _names(node, package)]


def _nodes(tree: ast.AST, for_types: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        inside = ast.iter_child_nodes(node)
        if not for_types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            inside = iter(node.orelse)
        waiting.extend(inside)


def _names(node: ast.Import | ast.ImportFrom, package: str) -> list[str]:
    """Return the dotted names that a node imports; the last part may be a name inside a module."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        parts = package.split(".")
        base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
    return [f"{base}.{alias.name}" for alias in node.names]


def _module(name: str, found: Mapping[str, pathlib.Path]) -> str | None:
    """Return the module that has this name or contains it."""
    while name:
        if name in found:
            return name
        name = name.rpartition(".")[0]
    return None
