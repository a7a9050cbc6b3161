"""The crash points of wbengine, read from its source."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "wbengine"

_FUNCTION = "crashpoint"


@dataclass(frozen=True, order=True)
class Point:
    name: str
    place: str

    @property
    def of_worker(self) -> bool:
        """Return whether only workers reach the point."""
        return self.name.startswith("worker.")


def find(package: Path = PACKAGE) -> list[Point]:
    """Return all points by name.

    :raises ValueError: if the name of a point is not a string literal.
    """
    points: dict[str, Point] = {}
    for path in sorted(package.rglob("*.py")):
        if path == package / "_concurrency/crash_points.py":
            continue
        text = path.read_text(encoding="utf-8")
        if _FUNCTION not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and _named(node.func) == _FUNCTION:
                place = f"{path.relative_to(package.parent).as_posix()}:{node.lineno}"
                name = _literal(node, place)
                points.setdefault(name, Point(name, place))
    return sorted(points.values())


def _named(function: ast.expr) -> str | None:
    if isinstance(function, ast.Name):
        return function.id
    return function.attr if isinstance(function, ast.Attribute) else None


def _literal(call: ast.Call, place: str) -> str:
    (argument,) = call.args
    if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
        raise ValueError(f"{place}: the name of a crash point is a string literal")
    return argument.value
