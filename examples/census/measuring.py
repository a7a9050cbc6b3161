"""What is counted in one source file, and how counts are added up.

From bytes to plain JSON values.  Adding is associative and does not depend on order: every engine
arrives at the same bytes, whichever worker was first.
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

#: The measure of a file, a group, a module, or everything, by name: `NUMBERS`; the `longest`
#: function (`lines`, `name`, `at`) and the `deepest` statement (`depth`: how many blocks are around
#: it, `at`), or None; and the files that are `unparsed` (`path`, `why`), which count as files only.
Counts = dict[str, Any]

#: `code` are the lines that are neither blank nor begin with `#`; `imports` are statements.
NUMBERS = ("files", "lines", "code", "functions", "classes", "imports")

#: The name that parsed sources go by: warnings about them are not ours to mend.
_PSEUDONYM = "<census>"
#: Where statements keep the statements inside them; the first two are no level of their own.
_BLOCKS = ("handlers", "cases", "body", "orelse", "finalbody")


def measure(root: str, path: str) -> Counts:
    """Parse one file and count.  Never raises for what is in it; linear in its size."""
    # A filter that stays, rather than `catch_warnings`, which is not safe in threads.
    warnings.filterwarnings("ignore", module=_PSEUDONYM)
    try:
        source = Path(root, path).read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        tree = ast.parse(source.decode(encoding), _PSEUDONYM)
    except (OSError, SyntaxError, ValueError, LookupError, RecursionError, MemoryError) as error:
        return {**add(()), "files": 1, "unparsed": [{"path": path, "why": _reason(error)}]}
    lines = source.removeprefix(codecs.BOM_UTF8).splitlines()
    code = [line for line in map(bytes.lstrip, lines) if line and not line.startswith(b"#")]
    counted = {"files": 1, "lines": len(lines), "code": len(code), "unparsed": []}
    return {**counted, **_statements(path, tree)}


def add(parts: Iterable[Counts]) -> Counts:
    """The sum of `parts`; they may come in any order."""
    total: Counts = {**dict.fromkeys(NUMBERS, 0), "longest": None, "deepest": None, "unparsed": []}
    for part in parts:
        for name in NUMBERS:
            total[name] += part[name]
        total["longest"] = _most("lines", total["longest"], part["longest"])
        total["deepest"] = _most("depth", total["deepest"], part["deepest"])
        total["unparsed"].extend(part["unparsed"])
    total["unparsed"].sort(key=lambda item: item["path"])
    return total


def _statements(path: str, tree: ast.Module) -> Counts:
    """Walk the statements (functions, classes and imports are nothing else), without recursion."""
    functions = classes = imports = 0
    longest: dict[str, Any] | None = None
    deepest: dict[str, Any] | None = None
    todo: list[tuple[ast.AST, int, str]] = [(node, 0, "") for node in tree.body]
    while todo:
        node, depth, scope = todo.pop()
        line: int = getattr(node, "lineno", 0)
        at = f"{path}:{line}"
        if line:  # only a `case` has none
            deepest = _most("depth", deepest, {"depth": depth, "at": at})
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            scope = f"{scope}.{node.name}" if scope else node.name
            if isinstance(node, ast.ClassDef):
                classes += 1
            else:
                functions += 1
                length = (node.end_lineno or line) - line + 1
                longest = _most("lines", longest, {"lines": length, "name": scope, "at": at})
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


def _most(key: str, one: dict[str, Any] | None, other: dict[str, Any] | None) -> Any:
    """The one with more of `key`; of two that have as much, the one that stands first."""
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
