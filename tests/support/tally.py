"""What the tests of one run ran on: lines for its end, also where several processes shared it."""

from __future__ import annotations

from collections import Counter
from typing import Any

#: By kind: the version, or ''.
backends: dict[str, str] = {}
ledgers: dict[str, str] = {}
brokers: dict[str, str] = {}
#: (flow, kind of engine) of all runs of the contract of flows that went as expected.
flows: set[tuple[str, str]] = set()
#: Tests that are marked slow, and were left out.
waiting: set[str] = set()

_KINDS = {"backends": backends, "ledgers": ledgers, "brokers": brokers}
_ORDER = (
    "memory",
    "dir",
    "filesystem",
    "sqlite",
    "mysql",
    "postgresql",
    "redis",
    "rabbitmq",
    "zookeeper",
    "etcd",
)
_ENGINES = ("serial", "threads", "processes", "memory", "filesystem", "kept")


def told() -> dict[str, Any]:
    """All of it, as one process may tell another."""
    return {**_KINDS, "flows": sorted(map(list, flows)), "waiting": sorted(waiting)}


def add(other: dict[str, Any]) -> None:
    """Take in what another process told."""
    for what, kinds in _KINDS.items():
        kinds.update(other[what])
    flows.update((flow, kind) for flow, kind in other["flows"])
    waiting.update(other["waiting"])


def lines() -> list[str]:
    """What people want to see of it."""
    found = [f"{what}: {_listed(kinds)}" for what, kinds in _KINDS.items() if kinds]
    if flows:
        used = {kind for _, kind in flows}
        found.append(
            f"contract of flows: {len({flow for flow, _ in flows})} flows x {len(used)} kinds"
            f" ({', '.join(sorted(used, key=_ENGINES.index))}), {len(flows)} runs as expected"
        )
    if waiting:
        found.append(f"slow, and left out: {len(waiting)} tests")
    return found


def waiting_by_folder() -> dict[str, int]:
    """How many tests were left out of each folder of tests."""
    return Counter(name.split("/")[1] for name in waiting)


def _listed(kinds: dict[str, str]) -> str:
    words = []
    for kind in sorted(kinds, key=_ORDER.index):
        version = kinds[kind] if kind == "sqlite" else f"({kinds[kind]})"
        words.append(f"{kind} {version}" if kinds[kind] else kind)
    return ", ".join(words)
