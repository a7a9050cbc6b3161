"""The packages that show records import neither engines, nor the wire, nor concurrency."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

import pytest

from . import imports

READING = ("views", "drawing", "report")

#: The packages that these packages may import, besides modules of the root package.
ALLOWED = {*READING, "types", "persistence", "permits"}


def problems(modules: Mapping[str, pathlib.Path]) -> list[str]:
    """Return the forbidden imports of the packages that show records."""
    packages = {name.split(".")[1] for name in modules if name.count(".") > 1}
    return [
        str(edge)
        for edge in imports.imports(modules)
        if _package(edge.source) in READING and _package(edge.target) in packages - ALLOWED
    ]


def _package(module: str) -> str:
    return [*module.split("."), ""][1]


def test_reading_packages_do_not_import_engines_wire_or_services() -> None:
    assert problems(imports.modules(imports.ROOT / "wbengine")) == []


@pytest.mark.parametrize("package", READING)
@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("from wbengine import engines", 1),
        ("def f():\n    from wbengine.engines.base import Engine", 1),
        ("import wbengine.concurrency.timers", 1),
        ("from wbengine import states\nfrom wbengine.types import outline", 0),
    ],
)
def test_forbidden_import_is_found(
    tmp_path: pathlib.Path, package: str, text: str, count: int
) -> None:
    files = {
        f"{package}/page.py": text,
        "engines/base.py": "from wbengine import concurrency",
        "concurrency/timers.py": "",
        "types/outline.py": "",
        "states.py": "",
    }
    for name, content in files.items():
        path = tmp_path / "wbengine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(content)
    (tmp_path / "wbengine/__init__.py").touch()
    assert len(problems(imports.modules(tmp_path / "wbengine"))) == count
