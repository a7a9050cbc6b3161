"""Tests import helpers, never other test modules."""

from __future__ import annotations

import pathlib
import re

from . import imports

TESTS = imports.ROOT / "tests"
#: Files without such an import are not parsed.
IMPORT = re.compile(r"\bimport\s*\([^)]*\btest_|\b(from|import)\b.*\btest_")


def shared_test_modules(tests: pathlib.Path) -> list[str]:
    """Return a line for each import of a test module."""
    modules = imports.modules(tests)
    naming = {
        name: path
        for name, path in modules.items()
        if IMPORT.search(path.read_text(encoding="utf-8"))
    }
    edges = imports.imports(modules, naming)
    return [str(edge) for edge in edges if edge.target.rpartition(".")[2].startswith("test_")]


def test_no_test_module_is_imported() -> None:
    assert shared_test_modules(TESTS) == []


def test_imported_test_module_is_found(tmp_path: pathlib.Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_a.py").write_text("")
    (tests / "test_b.py").write_text("from tests import test_a\n")
    found = shared_test_modules(tests)
    assert len(found) == 1 and found[0].endswith("tests.test_b imports tests.test_a")


def test_shared_helpers_are_in_support() -> None:
    assert {path.name for path in TESTS.glob("*.py")} == {"__init__.py", "conftest.py"}
