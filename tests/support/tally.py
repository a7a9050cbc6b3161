"""The implementations that a test run used, for its last lines, also for parallel runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

#: Version by kind, or ''.
backends: dict[str, str] = {}
ledgers: dict[str, str] = {}
brokers: dict[str, str] = {}
#: (flow, kind of engine) of all runs of the contract of flows with the expected result.
flows: set[tuple[str, str]] = set()
#: Tests with the marker slow, and cases outside of the sample of a commit, that were deselected.
waiting: set[str] = set()
#: Tests with the marker slow that the share of a commit contains.
shared: set[str] = set()

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
_ENGINES = ("serial", "threads", "processes", "memory", "filesystem", "kept", "postgresql", "mysql")


def export() -> dict[str, Any]:
    """Return all data in a form that one process can send to another."""
    data: dict[str, Any] = {**_KINDS, "flows": sorted(map(list, flows))}
    return {**data, "waiting": sorted(waiting), "shared": sorted(shared)}


def add(other: dict[str, Any]) -> None:
    """Merge the data of another process."""
    for what, kinds in _KINDS.items():
        kinds.update(other[what])
    flows.update((flow, kind) for flow, kind in other["flows"])
    waiting.update(other["waiting"])
    shared.update(other["shared"])


def lines() -> list[str]:
    """Return the summary as lines of text."""
    summary = [f"{what}: {_listed(kinds)}" for what, kinds in _KINDS.items() if kinds]
    if flows:
        used = {kind for _, kind in flows}
        summary.append(
            f"contract of flows: {len({flow for flow, _ in flows})} flows x {len(used)} kinds"
            f" ({', '.join(sorted(used, key=_ENGINES.index))}), {len(flows)} runs as expected"
        )
    if shared:
        summary.append(f"slow, and in the share of this commit: {len(shared)} tests")
    if waiting:
        summary.append(f"left out, slow or outside of the sample: {len(waiting)} tests")
    return summary


def waiting_by_folder() -> dict[str, int]:
    """Return the number of deselected tests of each folder."""
    return Counter(name.split("/")[1] for name in waiting)


def _listed(kinds: dict[str, str]) -> str:
    words = []
    for kind in sorted(kinds, key=_ORDER.index):
        version = kinds[kind] if kind == "sqlite" else f"({kinds[kind]})"
        words.append(f"{kind} {version}" if kinds[kind] else kind)
    return ", ".join(words)
