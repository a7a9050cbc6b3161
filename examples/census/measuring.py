"""The counts of one source file, and the addition of counts.

The input is bytes, the results are plain JSON values. Addition is associative and commutative, so
every engine produces the same bytes, whatever the order in which workers finish.
"""

from __future__ import annotations

import ast
import codecs
import io
import tokenize
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

#: Counts of a file, a group, a module, or everything, by name: `NUMBERS`; the `longest` function
#: (`lines`, `name`, `at`) and the `deepest` statement (`depth`: the number of enclosing blocks,
#: `at`), or None; and the `unparsed` files (`path`, `why`), which are included only in `files`.
Counts = dict[str, Any]

#: `code` counts lines that are neither blank nor begin with `#`; `imports` counts statements.
NUMBERS = ("files", "lines", "code", "functions", "classes", "imports")

#: The file name of parsed sources, for a filter that ignores warnings about them.
_PSEUDONYM = "<census>"
#: Attributes of statements that contain other statements; the first two do not add a level.
_BLOCKS = ("handlers", "cases", "body", "orelse", "finalbody")


def measure(root: str, path: str) -> Counts:
    """Parse one file and count.

    Never raises an exception because of its content; takes linear time.
    """
    # A permanent filter, because `catch_warnings` is not thread-safe.
    warnings.filterwarnings("ignore", module=_PSEUDONYM)
    try:
        source = Path(root, path).read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        tree = ast.parse(source.decode(encoding), _PSEUDONYM)
    except (OSError, SyntaxError, ValueError, LookupError, RecursionError, MemoryError) as error:
        return {**add(()), "files": 1, "unparsed": [{"path": path, "why": _reason(error)}]}
    lines = source.removeprefix(codecs.BOM_UTF8).splitlines()
    code = [line for line in map(bytes.lstrip, lines) if line and not line.startswith(b"#")]
    counts = {"files": 1, "lines": len(lines), "code": len(code), "unparsed": []}
    return {**counts, **_statements(path, tree)}


def add(parts: Iterable[Counts]) -> Counts:
    """Return the sum of `parts`, which may be in any order."""
    total: Counts = {**dict.fromkeys(NUMBERS, 0), "longest": None, "deepest": None, "unparsed": []}
    for part in parts:
        for name in NUMBERS:
            total[name] += part[name]
        total["longest"] = _larger("lines", total["longest"], part["longest"])
        total["deepest"] = _larger("depth", total["deepest"], part["deepest"])
        total["unparsed"].extend(part["unparsed"])
    total["unparsed"].sort(key=lambda item: item["path"])
    return total


def _statements(path: str, tree: ast.Module) -> Counts:
    """Count functions, classes, imports and nesting, without recursion."""
    functions = classes = imports = 0
    longest: dict[str, Any] | None = None
    deepest: dict[str, Any] | None = None
    todo: list[tuple[ast.AST, int, str]] = [(node, 0, "") for node in tree.body]
    while todo:
        node, depth, scope = todo.pop()
        line: int = getattr(node, "lineno", 0)
        at = f"{path}:{line}"
        if line:  # only a `case` has no line
            deepest = _larger("depth", deepest, {"depth": depth, "at": at})
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            scope = f"{scope}.{node.name}" if scope else node.name
            if isinstance(node, ast.ClassDef):
                classes += 1
            else:
                functions += 1
                length = (node.end_lineno or line) - line + 1
                longest = _larger("lines", longest, {"lines": length, "name": scope, "at": at})
        imports += isinstance(node, ast.Import | ast.ImportFrom)
        for block in _BLOCKS:
            if inner := getattr(node, block, None):
                flat = block in _BLOCKS[:2] or (block == "orelse" and _is_elif(node, inner[0]))
                todo.extend((child, depth if flat else depth + 1, scope) for child in inner)
    return {"functions": functions, "classes": classes, "imports": imports,
            "longest": longest, "deepest": deepest}  # fmt: skip


def _is_elif(node: ast.AST, first: ast.stmt) -> bool:
    both = isinstance(node, ast.If) and isinstance(first, ast.If)
    return both and first.col_offset == node.col_offset  # type: ignore[attr-defined]


def _larger(key: str, one: dict[str, Any] | None, other: dict[str, Any] | None) -> Any:
    """Return the one with the larger `key`; of two equal ones, the earlier in the source."""
    if one is None or other is None or one[key] != other[key]:
        return max((one, other), key=lambda found: -1 if found is None else found[key])
    return min(one, other, key=lambda found: _place(found["at"]))


def _place(at: str) -> tuple[str, int]:
    path, _, line = at.rpartition(":")
    return path, int(line)


def _reason(error: BaseException) -> str:
    kind = type(error).__name__
    if isinstance(error, OSError):
        return f"{kind}: {error.strerror}"
    if isinstance(error, SyntaxError):
        return f"{kind}: {error.msg}{f' (line {error.lineno})' if error.lineno else ''}"
    return f"{kind}: {error}" if str(error) else kind
