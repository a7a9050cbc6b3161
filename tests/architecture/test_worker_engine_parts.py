"""Rooms of the worker-based engine import only earlier rooms; its two sides are separate."""

from __future__ import annotations

from collections.abc import Iterable

from . import imports

BASE = "wbengine.engines.worker_based"
#: Each room may import the rooms before it.
ORDER = ("messages", "connections", "ledger", "discovery", "requests", "engine_side", "worker_side")
APART = {"requests", "engine_side"}, "worker_side"
#: Modules at the top level -> their rooms.
TOP = {
    "protocol": "messages",
    "dispatcher": "connections",
    "proxy": "connections",
    "types": "discovery",
    "executor": "engine_side",
    "engine": "engine_side",
    "endpoint": "worker_side",
    "server": "worker_side",
    "worker": "worker_side",
}


def room(module: str) -> str | None:
    """Return the room of a module, or None if it is outside."""
    if not module.startswith(f"{BASE}."):
        return None
    name = module.removeprefix(f"{BASE}.").partition(".")[0]
    return TOP.get(name, name)


def problems(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line for each forbidden import (source, target)."""
    lines = []
    for source, target in pairs:
        one, other = room(source), room(target)
        if one is None or other is None:
            continue
        engines, workers = APART
        if ORDER.index(other) > ORDER.index(one) or (one == workers and other in engines):
            lines.append(f"{source} imports {target}: {one} must not know {other}")
    return lines


def test_rooms_import_only_earlier_rooms() -> None:
    edges = imports.imports(imports.modules(imports.ROOT / "wbengine"))
    pairs = [(edge.source, edge.target) for edge in edges]
    assert {room(source) for source, _ in pairs} >= set(ORDER)
    assert problems(pairs) == []


def test_import_of_later_room_is_found() -> None:
    wrong = [
        (f"{BASE}.messages.envelope", f"{BASE}.connections.lines"),
        (f"{BASE}.types", f"{BASE}.requests.book"),
        (f"{BASE}.executor", f"{BASE}.worker_side.jobs"),
        (f"{BASE}.worker_side.jobs", f"{BASE}.executor"),
        (f"{BASE}.worker", f"{BASE}.requests.entries"),
    ]
    assert len(problems(wrong)) == len(wrong)
    assert problems([(f"{BASE}.worker", f"{BASE}.protocol"), ("wbengine.views", BASE)]) == []


def test_package_of_room_imports_nothing() -> None:
    found = imports.modules(imports.ROOT / "wbengine")
    rooms = {f"{BASE}.{name}" for name in ORDER} - {f"{BASE}.ledger"}
    assert rooms <= found.keys()
    assert [edge for edge in imports.imports(found) if edge.source in rooms] == []
