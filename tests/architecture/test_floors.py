"""Modules import only from the same or a lower floor; core and wire do not import each other."""

from __future__ import annotations

import pathlib
import textwrap
from collections.abc import Mapping

import pytest

from . import imports

CORE, WIRE = "core", "wire"

#: Module prefix -> floor and wing; the longest prefix applies ("wbengine" itself has no entry).
FLOORS: dict[str, tuple[int, str]] = {
    # words
    "wbengine.exceptions": (0, ""),
    "wbengine.states": (0, ""),
    "wbengine._clock": (0, ""),
    "wbengine._crash": (0, ""),
    "wbengine._sql": (1, ""),
    "wbengine._import_path": (0, ""),
    "wbengine._sqlite_files": (0, ""),
    "wbengine._installing": (0, ""),
    "wbengine._lazily": (0, ""),
    "wbengine._log_lines": (0, ""),
    "wbengine._log_rate": (0, ""),
    "wbengine._names": (0, ""),
    "wbengine._options": (0, ""),
    "wbengine._plugins": (0, ""),
    "wbengine._streams": (0, ""),
    "wbengine._terminal": (0, ""),
    "wbengine._user_frames": (0, ""),
    "wbengine.logging": (0, ""),
    "wbengine.version": (0, ""),
    # values
    "wbengine.types": (1, ""),
    "wbengine._codec": (1, ""),
    "wbengine._secrets": (1, ""),
    "wbengine._json_text": (1, ""),
    "wbengine.keys": (1, ""),
    # model
    "wbengine.atom": (2, ""),
    "wbengine._binding": (2, ""),
    "wbengine.task": (2, ""),
    "wbengine._tasks": (2, ""),
    "wbengine.backoff": (2, ""),
    "wbengine.retry": (2, ""),
    "wbengine.flow": (2, ""),
    "wbengine.deciders": (2, ""),
    "wbengine.patterns": (2, ""),
    "wbengine.composite_executor": (2, ""),
    "wbengine.invocation": (2, ""),
    "wbengine.concurrency": (2, ""),
    "wbengine.pools": (2, ""),
    "wbengine.limits": (2, ""),
    "wbengine.start_times": (2, ""),
    "wbengine.running": (2, ""),
    "wbengine.logged_lines": (2, ""),
    "wbengine.task_logs": (2, ""),
    "wbengine.signals": (2, ""),
    # memory
    "wbengine.persistence": (3, ""),
    "wbengine.arguments": (3, ""),
    "wbengine.storage": (3, ""),
    "wbengine.permits": (3, ""),
    "wbengine.permits.limit_attributes": (1, ""),
    # core and wire
    "wbengine.runtime": (4, CORE),
    "wbengine.transports": (4, WIRE),
    "wbengine.engines.worker_based": (4, WIRE),
    # engines
    "wbengine.engines": (5, ""),
    "wbengine.jobs": (5, ""),
    "wbengine.engines.worker_based.engine": (5, ""),
    "wbengine.engines.worker_based.engine_side.resume": (5, ""),
    # services
    "wbengine.conductors": (6, ""),
    "wbengine.schedules": (6, ""),
    "wbengine.listeners": (6, ""),
    "wbengine.formatters": (6, ""),
    "wbengine.fleet": (6, ""),
    "wbengine.views": (6, ""),
    "wbengine.drawing": (6, ""),
    "wbengine.report": (6, ""),
    "wbengine.operations": (6, ""),
    "wbengine.telemetry": (6, ""),
    "wbengine.diagnosis": (6, ""),
    "wbengine.interop": (6, ""),
    "wbengine.utils": (6, ""),
    "wbengine.compat": (6, ""),
    # doors
    "wbengine.__main__": (7, ""),
    "wbengine.cli": (7, ""),
    "wbengine.dev": (7, ""),
    "wbengine.worker": (7, ""),
    "wbengine.dashboard": (7, ""),
    "wbengine.testing": (7, ""),
}


def floor(module: str) -> tuple[int, str] | None:
    """Return the floor and wing of a module, or None if it has none."""
    if module == "wbengine":
        return 0, ""
    name = module
    while name != "wbengine":
        if name in FLOORS:
            return FLOORS[name]
        name = name.rpartition(".")[0]
    return None


def problems(found: Mapping[str, pathlib.Path]) -> list[str]:
    """Return a line for each module without a floor, each forbidden import and each cycle."""
    lines = [
        f"{path}: {module} has no floor; add it to FLOORS in tests/architecture/test_floors.py"
        for module, path in found.items()
        if floor(module) is None
    ]
    edges = imports.imports(found)
    for edge in edges:
        source, target = floor(edge.source), floor(edge.target)
        if source is None or target is None:
            continue
        if target[0] > source[0]:
            verdict = f"floor {source[0]} must not know floor {target[0]}"
        elif {source[1], target[1]} == {CORE, WIRE}:
            verdict = "core and wire must not know each other"
        else:
            continue
        lines.append(f"{edge} ({found[edge.target]}): {verdict}")
    lines += ["import cycle: " + "; ".join(map(str, cycle)) for cycle in imports.cycles(edges)]
    return lines


def test_package_imports_only_from_same_or_lower_floors() -> None:
    found = imports.modules(imports.ROOT / "wbengine")
    assert len(found) > 10
    lines = problems(found)
    assert not lines, "\n" + "\n".join(lines)


def test_each_module_with_a_floor_exists() -> None:
    assert not FLOORS.keys() - imports.modules(imports.ROOT / "wbengine").keys()


# Tests of the checker itself: each rule must fail once.
# --------------------------------------------


def check(folder: pathlib.Path, files: Mapping[str, str]) -> list[str]:
    """Write a package from `files` and return its problems."""
    package = folder / "wbengine"
    for name, text in {"__init__.py": "", **files}.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return problems(imports.modules(package))


CLEAN = {
    "task.py": "import wbengine.atom\nfrom wbengine import exceptions",
    "atom.py": "",
    "exceptions.py": "",
}


def test_import_of_lower_floor_or_for_type_checking_is_accepted(tmp_path: pathlib.Path) -> None:
    files = {
        **CLEAN,
        "exceptions.py": """
            from typing import TYPE_CHECKING
            if TYPE_CHECKING:
                from wbengine import storage
        """,
        "storage.py": "from wbengine.task import Task",
        "runtime/__init__.py": "",
        "runtime/plan.py": "from wbengine import storage",
        "engines/__init__.py": "",
        "engines/base.py": "from .. import runtime",
        "engines/worker_based/__init__.py": "",
        "engines/worker_based/engine.py": "from wbengine.runtime import plan\nfrom . import proxy",
        "engines/worker_based/proxy.py": "from wbengine import task",
    }
    assert check(tmp_path, files) == []


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"odd.py": ""}, ["wbengine.odd has no floor"]),
        (
            {"states.py": "\nfrom wbengine import task"},
            ["states.py:2", "task.py)", "floor 0 must not know floor 2"],
        ),
        (
            {"states.py": "def f():\n    import wbengine.task"},
            ["states.py:2", "floor 0 must not know floor 2"],
        ),
        (
            {"states.py": "import importlib\nimportlib.import_module('wbengine.task')"},
            ["states.py:2", "floor 0 must not know floor 2"],
        ),
        (
            {"__init__.py": "from wbengine.task import Task"},
            ["__init__.py:1", "floor 0 must not know floor 2"],
        ),
        (
            {"types/a.py": "from ..task import Task", "types/__init__.py": ""},
            ["a.py:1", "floor 1 must not know floor 2"],
        ),
        (
            {"runtime/plan.py": "from wbengine.transports import redis", "transports/redis.py": ""},
            ["plan.py:1", "core and wire"],
        ),
        (
            {
                "engines/worker_based/proxy.py": "from wbengine.runtime.plan import Plan",
                "runtime/plan.py": "",
            },
            ["proxy.py:1", "core and wire"],
        ),
        (
            {
                "engines/worker_based/proxy.py": "from .engine import X",
                "engines/worker_based/engine.py": "",
            },
            ["proxy.py:1", "floor 4 must not know floor 5"],
        ),
        (
            {
                "retry.py": "from wbengine import flow",
                "flow.py": "def f(): from wbengine import retry",
            },
            ["import cycle", "retry.py:1", "flow.py:1"],
        ),
        (
            {
                "atom.py": "from wbengine import retry",
                "retry.py": "\nfrom wbengine import flow",
                "flow.py": "def f():\n  class A:\n    from wbengine import atom",
            },
            ["import cycle", "atom.py:1", "retry.py:2", "flow.py:3"],
        ),
    ],
)
def test_import_of_higher_floor_or_cycle_is_found(
    tmp_path: pathlib.Path, files: dict[str, str], words: list[str]
) -> None:
    lines = check(tmp_path, {**CLEAN, **files})
    assert len(lines) == 1, lines
    for word in words:
        assert word in lines[0]
