"""The structure of a flow, to be drawn: what is inside what, and what comes after what.

It needs none of the code that the flow is made of, so it can be kept with the flow's records.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import operator
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

from wbengine import _json_text, exceptions

__all__ = ["FLOW", "MAP", "RETRY", "TASK", "Outline", "OutlineNode"]

FLOW: Final = "flow"
RETRY: Final = "retry"
TASK: Final = "task"
MAP: Final = "map"

#: Of what is written; what is read may be older, and never newer.
VERSION: Final = 1

_LETTERS: Final[Mapping[str, str]] = {FLOW: "f", RETRY: "r", TASK: "t", MAP: "m"}
_KINDS: Final[Mapping[str, str]] = {letter: kind for kind, letter in _LETTERS.items()}
#: What is packed is much the same all over: the fastest level leaves little more than the best.
_LEVEL: Final = 3
#: What reading what is none raises.
_DAMAGES: Final = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
#: Nothing that was written here unpacks to more bytes.
_MOST: Final = 1 << 30


class OutlineNode(NamedTuple):
    """A flow, a task, a retry or a Map.

    `parent` is the position of the flow that it is in (None: it is the outermost node), and `task`
    the name of the class or function that it is made of, for atoms.  `notes` say in words what a
    picture should tell besides: its rule of joining, its deciders.  `signal` is what a task waits
    for that does nothing else (`task.WaitFor`), and `limit` says in words how a task, or the
    outermost flow, is limited.
    """

    name: str
    kind: str
    parent: int | None
    task: str | None = None
    notes: str | None = None
    signal: str | None = None
    limit: str | None = None


@dataclass(frozen=True)
class Outline:
    """All nodes, and which come directly after which.

    `nodes[0]` is the outermost flow, or the only task; parents come before what is in them.
    `edges` are pairs of positions.  One to or from a flow means all of it.  That a flow's retry
    comes before everything else in that flow is not told by edges.
    """

    nodes: tuple[OutlineNode, ...]
    edges: tuple[tuple[int, int], ...]

    @cached_property
    def digest(self) -> str:
        """A short name for this structure, and no other."""
        return hashlib.sha256(self._packed).hexdigest()[:32]

    @property
    def signals(self) -> list[str]:
        """What tasks wait for, each once."""
        return list(dict.fromkeys(node.signal for node in self.nodes if node.signal is not None))

    def to_bytes(self) -> bytes:
        """Write it in few bytes."""
        return self._packed

    @cached_property
    def _packed(self) -> bytes:
        names, kinds, parents, tasks, notes, signals, limits = zip(*self.nodes, strict=True)
        befores = [edge[0] for edge in self.edges]
        numbers = {task: number for number, task in enumerate(dict.fromkeys(tasks))}
        told: dict[str, Any] = {
            "version": VERSION,
            "names": names,
            "kinds": "".join([_LETTERS[kind] for kind in kinds]),
            "parents": _steps([-1 if parent is None else parent for parent in parents]),
            "tasks": list(numbers),
            "task": [numbers[task] for task in tasks],
            "notes": {number: note for number, note in enumerate(notes) if note},
            "from": _steps(befores),
            "length": [after - before for before, after in self.edges],
        }
        if any(signals):
            told["signals"] = {number: signal for number, signal in enumerate(signals) if signal}
        if any(limits):
            told["limits"] = {number: limit for number, limit in enumerate(limits) if limit}
        return zlib.compress(_json_text.text_of(told).encode("utf-8", "surrogatepass"), _LEVEL)

    @classmethod
    def from_bytes(cls, data: bytes) -> Outline:
        """What `to_bytes` wrote.

        :raises InvalidFormat: it is something else, or damaged, or of a newer version.
        """
        try:
            told = json.loads(_unpacked(data))
            version = told["version"]
            if version > VERSION:
                raise exceptions.InvalidFormat(
                    f"The outline of a flow is of version {version}: a newer wbengine wrote it"
                )
            return _checked(_made(told))
        except (*_DAMAGES, zlib.error) as error:
            raise exceptions.InvalidFormat(f"This is no outline of a flow: {error}") from None


def _unpacked(data: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    found = unpacking.decompress(data, _MOST)
    if not unpacking.eof:
        raise ValueError("it is not whole")
    return found


def _made(told: Mapping[str, Any]) -> Outline:
    tasks, notes = told["tasks"], {int(n): text for n, text in told["notes"].items()}
    signals = {int(n): str(name) for n, name in told.get("signals", {}).items()}
    limits = {int(n): str(limit) for n, limit in told.get("limits", {}).items()}
    parents = (parent if parent >= 0 else None for parent in _sums(told["parents"]))
    columns = zip(told["names"], told["kinds"], parents, told["task"], strict=True)
    nodes = tuple(
        [
            OutlineNode(
                name,
                _KINDS[kind],
                parent,
                tasks[task],
                notes.get(number),
                signals.get(number),
                limits.get(number),
            )
            for number, (name, kind, parent, task) in enumerate(columns)
        ]
    )
    pairs = zip(_sums(told["from"]), told["length"], strict=True)
    return Outline(nodes, tuple([(before, before + length) for before, length in pairs]))


def _checked(made: Outline) -> Outline:
    """Refuse what nobody could draw."""
    if not made.nodes or made.nodes[0].parent is not None:
        raise ValueError("its first node is in another one, or there is none")
    for number, node in enumerate(made.nodes):
        if not isinstance(node.name, str):
            raise TypeError(f"the name of node {number} is {node.name!r:.80}")
        if number and (node.parent is None or not 0 <= node.parent < number):
            raise ValueError(f"node {number} is in node {node.parent}")
    known = range(len(made.nodes))
    for before, after in made.edges:
        if before not in known or after not in known:
            raise ValueError(f"it has no nodes {before} and {after}")
    return made


def _steps(numbers: Sequence[int]) -> list[int]:
    """Numbers as differences: most of them are the same."""
    return [*numbers[:1], *map(operator.sub, numbers[1:], numbers)]


def _sums(steps: Iterable[int]) -> list[int]:
    return list(itertools.accumulate(steps))
