"""What is counted in one source file, and how counts are added up.

Pure functions from bytes to plain JSON values.  Adding is associative and does not depend on order:
every engine arrives at the same bytes, whichever worker was first.
"""

from __future__ import annotations

import ast
import codecs
import io
import re
import tokenize
import warnings
from collections.abc import Iterable
from typing import Final, TypedDict


class Longest(TypedDict):
    """A function: its length in lines and where it is (`path:line`)."""

    lines: int
    name: str
    at: str


class Deepest(TypedDict):
    """A statement: how many blocks are around it and where it is (`path:line`)."""

    depth: int
    at: str


class Unparsed(TypedDict):
    """A file that could not be measured, and why."""

    path: str
    why: str


class Counts(TypedDict):
    """The measure of a file, a group, a module, or everything.

    `files` counts the unparsed ones too; nothing else does.  `code` are the lines that are neither
    blank nor begin with `#`; `imports` are import statements.
    """

    files: int
    lines: int
    code: int
    functions: int
    classes: int
    imports: int
    longest: Longest | None
    deepest: Deepest | None
    unparsed: list[Unparsed]


#: The file name that parsed sources go by, so that one filter silences the warnings about them.
_PSEUDONYM: Final = "<census>"
_PATTERN: Final = re.compile(re.escape(_PSEUDONYM))

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_IMPORTS: Final = (ast.Import, ast.ImportFrom)
#: Where statements keep the statements inside them.
_BLOCKS: Final = ("body", "handlers", "cases", "orelse", "finalbody")
_FLAT: Final = ("handlers", "cases")


def nothing() -> Counts:
    """The measure of no file: what adding starts from."""
    return {
        "files": 0,
        "lines": 0,
        "code": 0,
        "functions": 0,
        "classes": 0,
        "imports": 0,
        "longest": None,
        "deepest": None,
        "unparsed": [],
    }


def unreadable(path: str, why: str) -> Counts:
    """The measure of a file that cannot be parsed."""
    counts = nothing()
    counts["files"] = 1
    counts["unparsed"] = [{"path": path, "why": why}]
    return counts


def measure(path: str, source: bytes) -> Counts:
    """Parse one file and count.  Never raises for what is in it; linear in its size."""
    quiet()
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        tree = ast.parse(source.decode(encoding), _PSEUDONYM)
    except (SyntaxError, ValueError, LookupError, RecursionError, MemoryError) as error:
        return unreadable(path, _reason(error))
    counts = nothing()
    counts["files"] = 1
    lines = source.removeprefix(codecs.BOM_UTF8).splitlines()
    bare = [line.lstrip() for line in lines]
    counts["lines"] = len(lines)
    counts["code"] = sum(1 for line in bare if line and not line.startswith(b"#"))
    _statements(path, tree, counts)
    return counts


def add(parts: Iterable[Counts]) -> Counts:
    """The sum of `parts`; they may come in any order."""
    total = nothing()
    for part in parts:
        total["files"] += part["files"]
        total["lines"] += part["lines"]
        total["code"] += part["code"]
        total["functions"] += part["functions"]
        total["classes"] += part["classes"]
        total["imports"] += part["imports"]
        total["longest"] = _longer(total["longest"], part["longest"])
        total["deepest"] = _deeper(total["deepest"], part["deepest"])
        total["unparsed"].extend(part["unparsed"])
    total["unparsed"].sort(key=lambda item: item["path"])
    return total


def quiet() -> None:
    """Silence warnings about the sources that are measured; they are not ours to mend.

    A filter that stays, rather than `catch_warnings`, which is not safe in threads.
    """
    if not any(entry[3] == _PATTERN for entry in warnings.filters):
        warnings.filterwarnings("ignore", module=_PATTERN.pattern)


def _statements(path: str, tree: ast.Module, counts: Counts) -> None:
    """Walk the statements (functions, classes and imports are nothing else), without recursion."""
    functions = classes = imports = 0
    longest = (0, 0, "")  # lines, -line, name
    deepest = (-1, 0)  # depth, -line
    todo: list[tuple[ast.AST, int, str]] = [(node, 0, "") for node in tree.body]
    while todo:
        node, depth, scope = todo.pop()
        line: int = getattr(node, "lineno", 0)
        if line:  # only a `case` has none
            deepest = max(deepest, (depth, -line))
        if isinstance(node, _FUNCTIONS):
            functions += 1
            scope = f"{scope}.{node.name}" if scope else node.name
            longest = max(longest, ((node.end_lineno or line) - line + 1, -line, scope))
        elif isinstance(node, ast.ClassDef):
            classes += 1
            scope = f"{scope}.{node.name}" if scope else node.name
        elif isinstance(node, _IMPORTS):
            imports += 1
        for block in _BLOCKS:
            inner = getattr(node, block, None)
            if inner:
                # `handlers` and `cases` are no level of their own, nor is an `elif`.
                flat = block in _FLAT or (block == "orelse" and _is_elif(node, inner))
                level = depth if flat else depth + 1
                todo.extend((child, level, scope) for child in inner)
    counts["functions"], counts["classes"], counts["imports"] = functions, classes, imports
    if longest[0]:
        counts["longest"] = {
            "lines": longest[0],
            "name": longest[2],
            "at": f"{path}:{-longest[1]}",
        }
    if deepest[0] >= 0:
        counts["deepest"] = {"depth": deepest[0], "at": f"{path}:{-deepest[1]}"}


def _is_elif(node: ast.AST, orelse: list[ast.stmt]) -> bool:
    first = orelse[0]
    return (
        isinstance(node, ast.If)
        and isinstance(first, ast.If)
        and first.col_offset == node.col_offset
    )


def _longer(one: Longest | None, other: Longest | None) -> Longest | None:
    if one is None or other is None:
        return one or other
    return min(one, other, key=lambda found: (-found["lines"], _place(found["at"])))


def _deeper(one: Deepest | None, other: Deepest | None) -> Deepest | None:
    if one is None or other is None:
        return one or other
    return min(one, other, key=lambda found: (-found["depth"], _place(found["at"])))


def _place(at: str) -> tuple[str, int]:
    path, _, line = at.rpartition(":")
    return path, int(line)


def _reason(error: BaseException) -> str:
    kind = type(error).__name__
    if isinstance(error, SyntaxError):
        where = f" (line {error.lineno})" if error.lineno else ""
        return f"{kind}: {error.msg}{where}"
    return f"{kind}: {error}" if str(error) else kind
