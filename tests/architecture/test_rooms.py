"""Rooms of the worker-based engine know each other in one direction, and its two sides do not."""

from __future__ import annotations

from collections.abc import Iterable

from . import imports

BASE = "wbengine.engines.worker_based"
#: Each knows those before it.
ORDER = ("messages", "connections", "ledger", "discovery", "requests", "engine_side", "worker_side")
APART = {"requests", "engine_side"}, "worker_side"
#: What is at the top, by the rooms that it belongs to.
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
    """Where a module is; None: elsewhere."""
    if not module.startswith(f"{BASE}."):
        return None
    name = module.removeprefix(f"{BASE}.").partition(".")[0]
    return TOP.get(name, name)


def problems(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """One line for each import, of a source and its target, that goes the wrong way."""
    lines = []
    for source, target in pairs:
        one, other = room(source), room(target)
        if one is None or other is None:
            continue
        engines, workers = APART
        if ORDER.index(other) > ORDER.index(one) or (one == workers and other in engines):
            lines.append(f"{source} imports {target}: {one} must not know {other}")
    return lines


def test_rooms_know_those_before_them() -> None:
    edges = imports.imports(imports.modules(imports.ROOT / "wbengine"))
    pairs = [(edge.source, edge.target) for edge in edges]
    assert {room(source) for source, _ in pairs} >= set(ORDER)
    assert problems(pairs) == []


def test_what_goes_the_wrong_way_is_seen() -> None:
    wrong = [
        (f"{BASE}.messages.envelope", f"{BASE}.connections.lines"),
        (f"{BASE}.types", f"{BASE}.requests.book"),
        (f"{BASE}.executor", f"{BASE}.worker_side.jobs"),
        (f"{BASE}.worker_side.jobs", f"{BASE}.executor"),
        (f"{BASE}.worker", f"{BASE}.requests.entries"),
    ]
    assert len(problems(wrong)) == len(wrong)
    assert problems([(f"{BASE}.worker", f"{BASE}.protocol"), ("wbengine.views", BASE)]) == []


def test_a_room_loads_nothing_by_itself() -> None:
    found = imports.modules(imports.ROOT / "wbengine")
    rooms = {f"{BASE}.{name}" for name in ORDER} - {f"{BASE}.ledger"}
    assert rooms <= found.keys()
    assert [edge for edge in imports.imports(found) if edge.source in rooms] == []
