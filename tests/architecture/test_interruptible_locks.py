"""Locks are entered atomically, so that an interrupt (Ctrl-C) leaves none of them locked."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from . import imports

#: Classes of `threading` whose locks are entered by Python code; `Thread.start` uses an `Event`.
UNSAFE = tuple(
    f"threading.{name}"
    for name in ("BoundedSemaphore", "Condition", "Semaphore", "Barrier", "Event", "Thread")
)
#: Conditions: `with` on one of them enters its lock in Python code, or is an error.
CONDITIONS = (*UNSAFE[:3], "conditions.Condition")
#: Modules and packages that may use them -> reason.
ALLOWED = {
    "wbengine/_cli/": "after an interrupt the command ends",
    "wbengine/_compat/": "the functions of TaskFlow return objects of `threading`",
    "wbengine/_concurrency/child_process.py": "an event that no other thread has",
    "wbengine/dashboard/": "it runs as a program, which ends after an interrupt",
    "wbengine/_cli/dev_fleet.py": "after an interrupt the program ends",
    "wbengine/diagnosis/": "after an interrupt the program ends",
    "wbengine/telemetry/": "servers and exporters, whose threads nothing interrupts",
    "wbengine/testing/": "tests only",
}


def constructors(tree: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[int, str, list[str]]]:
    """Yield line, class and target names of each construction of one of these classes."""
    targets: dict[ast.expr, list[str]] = {}
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "threading":
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            targets[node.value] = [ast.unparse(target) for target in node.targets]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call):
            targets[node.value] = [ast.unparse(node.target)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            made = ast.unparse(node.func)
            if made in names or (made in imported and f"threading.{made}" in names):
                yield node.lineno, made.rpartition(".")[2], targets.get(node, [])


def problems(sources: dict[str, str]) -> list[str]:
    """Return a line for each problem in these modules (path -> source)."""
    found = []
    entered = set()
    for path, source in sources.items():
        if "threading" not in source and "conditions" not in source:
            continue
        tree = ast.parse(source)
        for _, _, targets in constructors(tree, CONDITIONS):
            entered.update(target.rpartition(".")[2] for target in targets)
        if path.startswith(tuple(ALLOWED)):
            continue
        for line, made, _ in constructors(tree, UNSAFE):
            module = "threads" if made == "Thread" else "conditions"
            advice = f"use wbengine._concurrency.{module}"
            told = f"threading.{made} may stay locked after an interrupt: {advice}"
            found.append((path, line, told))
    is_used = re.compile(rf"\bwith\b.*\b({'|'.join(entered)})\b").search
    for path, source in sources.items():
        for node in ast.walk(ast.parse(source)) if is_used(source) else ():
            for item in node.items if isinstance(node, ast.With) else ():
                entering = ast.unparse(item.context_expr)
                if entering.rpartition(".")[2] in entered:
                    advice = "enter the lock itself"
                    told = f"`with {entering}` may leave it locked after an interrupt: {advice}"
                    found.append((path, node.lineno, told))
    return [f"{path}:{line}: {told}" for path, line, told in sorted(found)]


def deadlocks(source: str) -> list[int]:
    """Return the lines that call `wait_for` of a condition while they hold a lock."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.With):
            continue
        if not any("lock" in ast.unparse(item.context_expr) for item in node.items):
            continue
        calls = (each for child in node.body for each in ast.walk(child))
        lines += [
            call.lineno
            for call in calls
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(".wait_for")
        ]
    return lines


def package_sources() -> dict[str, str]:
    """Return the source of each module by its path."""
    package = imports.ROOT / "wbengine"
    sources = {
        str(path.relative_to(imports.ROOT)): path.read_text() for path in package.rglob("*.py")
    }
    assert len(sources) > 100
    return sources


def test_no_lock_is_held_while_waiting_for_a_condition() -> None:
    """`conditions.Condition.wait_for` would not release a lock that its caller has entered."""
    sources = {path: text for path, text in package_sources().items() if ".wait_for" in text}
    lines_of = {path: deadlocks(source) for path, source in sources.items()}
    assert {path: lines for path, lines in lines_of.items() if lines} == {}


def test_wait_for_with_a_held_lock_is_found() -> None:
    source = """
with self._lock:
    if self.busy:
        self._settled.wait_for(lambda: not self.busy)
self._settled.wait_for(lambda: not self.busy)
"""
    assert deadlocks(source) == [4]


def test_no_lock_is_entered_by_python_code() -> None:
    sources = package_sources()
    for allowed in ALLOWED:
        mine = [path for path in sources if path.startswith(allowed)]
        assert any(True for path in mine for _ in constructors(ast.parse(sources[path]), UNSAFE))
    assert problems(sources) == []


def test_unsafe_lock_is_found() -> None:
    source = """
from threading import Condition
class Store:
    def __init__(self):
        self._lock = threading.RLock()
        self._changed: Any = Condition(self._lock)
        self.safe = conditions.Condition(self._lock)

    def change(self):
        with self._lock, self._changed:
            pass

_places = threading.BoundedSemaphore(2)
threading.Thread(target=_places.release).start()
"""
    other = "with a.store.safe, a._places, a._lock: pass"
    advice = "may stay locked after an interrupt: use wbengine._concurrency."
    entered = "may leave it locked after an interrupt: enter the lock itself"
    assert problems({"a.py": source, "b.py": other}) == [
        f"a.py:6: threading.Condition {advice}conditions",
        f"a.py:10: `with self._changed` {entered}",
        f"a.py:13: threading.BoundedSemaphore {advice}conditions",
        f"a.py:14: threading.Thread {advice}threads",
        f"b.py:1: `with a._places` {entered}",
        f"b.py:1: `with a.store.safe` {entered}",
    ]
