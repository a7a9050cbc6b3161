"""The structure of a flow for drawings: nesting and order.

It is stored with the records of the flow, so that drawings do not need the code of the flow.
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

from wbengine import exceptions
from wbengine._text import data_formats, json_text

__all__ = ["ANY_SIGNAL", "FLOW", "MAP", "RETRY", "TASK", "Outline", "OutlineNode"]

FLOW: Final = "flow"
RETRY: Final = "retry"
TASK: Final = "task"
MAP: Final = "map"

#: Value of `OutlineNode.signal` of a workflow, which accepts all signals. It is not printable, so
#: it is no valid name of a signal.
ANY_SIGNAL: Final = "\x1f*"

_LETTERS: Final[Mapping[str, str]] = {FLOW: "f", RETRY: "r", TASK: "t", MAP: "m"}
_KINDS: Final[Mapping[str, str]] = {letter: kind for kind, letter in _LETTERS.items()}
#: A fast level: the content is repetitive, so higher levels are not much better.
_COMPRESSION_LEVEL: Final = 3
#: Exceptions that can occur when data in another format is decoded.
_DECODING_ERRORS: Final = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
#: Maximum size after decompression.
_MAX_BYTES: Final = 1 << 30


class OutlineNode(NamedTuple):
    """A flow, a task, a retry controller or a Map.

    :ivar parent: index of the surrounding flow; None for the outermost node.
    :ivar task: name of the class or function of an atom; for a Map, that of its items.
    :ivar notes: text for drawings: join rule, deciders.
    :ivar signal: the signal for which a `task.WaitFor` waits; `ANY_SIGNAL` for a workflow.
    :ivar limit: text that describes the limit of a task, or of the outermost flow.
    :ivar inputs: names of the inputs of the flow that an atom uses.
    """

    name: str
    kind: str
    parent: int | None
    task: str | None = None
    notes: str | None = None
    signal: str | None = None
    limit: str | None = None
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outline:
    """The nodes and edges of a flow.

    `nodes[0]` is the outermost flow, or the only task. Flows precede their members. `edges` are
    pairs of indexes of direct neighbors. An edge to or from a flow applies to the whole flow.
    `edges` does not contain the order between the retry controller of a flow and the other members.

    `reverting` contains the names of the tasks whose reversion has an effect. Tasks that were
    complete when the flow continued with other code may be missing in `nodes`.
    """

    nodes: tuple[OutlineNode, ...]
    edges: tuple[tuple[int, int], ...]
    reverting: tuple[str, ...] = ()

    @cached_property
    def digest(self) -> str:
        """A hash that identifies this structure."""
        return hashlib.sha256(self._packed).hexdigest()[:32]

    @property
    def signals(self) -> list[str]:
        """The signals for which tasks wait, each once, without `ANY_SIGNAL`."""
        names = dict.fromkeys(node.signal for node in self.nodes if node.signal is not None)
        return [name for name in names if name != ANY_SIGNAL]

    @property
    def accepts_any_signal(self) -> bool:
        """Whether the flow accepts signals of all names, and several of each name."""
        return any(node.signal == ANY_SIGNAL for node in self.nodes)

    @property
    def used_inputs(self) -> dict[str, tuple[str, ...]]:
        """The names of the inputs that each atom uses, by name of the atom."""
        return {node.name: node.inputs for node in self.nodes if node.inputs}

    def to_bytes(self) -> bytes:
        return self._packed

    @cached_property
    def _packed(self) -> bytes:
        names, kinds, parents, tasks, notes, signals, limits, inputs = zip(*self.nodes, strict=True)
        befores = [edge[0] for edge in self.edges]
        numbers = {task: number for number, task in enumerate(dict.fromkeys(tasks))}
        content: dict[str, Any] = {
            "version": data_formats.OUTLINE.written,
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
            content["signals"] = {number: signal for number, signal in enumerate(signals) if signal}
        if any(limits):
            content["limits"] = {number: limit for number, limit in enumerate(limits) if limit}
        if any(inputs):
            input_sets = {each: number for number, each in enumerate(dict.fromkeys(inputs))}
            content["input_sets"] = list(input_sets)
            content["inputs"] = [input_sets[each] for each in inputs]
        if self.reverting:
            numbers_by_name = {name: number for number, name in enumerate(names)}
            content["reverting"] = [numbers_by_name.get(name, name) for name in self.reverting]
        data = json_text.text_of(content).encode("utf-8", "surrogatepass")
        return zlib.compress(data, _COMPRESSION_LEVEL)

    @classmethod
    def from_bytes(cls, data: bytes) -> Outline:
        """Decode the result of `to_bytes`.

        :raises InvalidFormat: if the data is damaged, has a newer version or is not an outline.
        """
        try:
            content = json.loads(_unpacked(data))
            data_formats.OUTLINE.check(
                "The outline of a flow", content["version"], exceptions.InvalidFormat
            )
            return _checked(_outline_of(content))
        except (*_DECODING_ERRORS, zlib.error) as error:
            raise exceptions.InvalidFormat(f"invalid outline of a flow: {error}") from None


def _unpacked(data: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    unpacked = unpacking.decompress(data, _MAX_BYTES)
    if not unpacking.eof:
        raise ValueError("it is incomplete")
    return unpacked


def _outline_of(content: Mapping[str, Any]) -> Outline:
    tasks, notes = content["tasks"], {int(n): text for n, text in content["notes"].items()}
    signals = {int(n): str(name) for n, name in content.get("signals", {}).items()}
    limits = {int(n): str(limit) for n, limit in content.get("limits", {}).items()}
    input_sets = [tuple(map(str, names)) for names in content.get("input_sets", [()])]
    inputs = content.get("inputs") or [0] * len(content["names"])
    parents = (parent if parent >= 0 else None for parent in _sums(content["parents"]))
    columns = zip(content["names"], content["kinds"], parents, content["task"], inputs, strict=True)
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
                input_sets[input_set],
            )
            for number, (name, kind, parent, task, input_set) in enumerate(columns)
        ]
    )
    pairs = zip(_sums(content["from"]), content["length"], strict=True)
    edges = tuple([(before, before + length) for before, length in pairs])
    reverting = [
        nodes[each].name if isinstance(each, int) else str(each)
        for each in content.get("reverting", ())
    ]
    return Outline(nodes, edges, tuple(reverting))


def _checked(outline: Outline) -> Outline:
    if not outline.nodes or outline.nodes[0].parent is not None:
        raise ValueError("its first node must be the outermost one")
    for number, node in enumerate(outline.nodes):
        if not isinstance(node.name, str):
            raise TypeError(f"the name of node {number} must be a str, got {node.name!r:.80}")
        if number and (node.parent is None or not 0 <= node.parent < number):
            raise ValueError(
                f"the parent of node {number} must be an earlier node, got {node.parent}"
            )
    positions = range(len(outline.nodes))
    for before, after in outline.edges:
        if before not in positions or after not in positions:
            raise ValueError(f"its edge has unknown nodes: {before}, {after}")
    return outline


def _steps(numbers: Sequence[int]) -> list[int]:
    """Return the differences of consecutive numbers. Most are equal, so they compress well."""
    return [*numbers[:1], *map(operator.sub, numbers[1:], numbers)]


def _sums(steps: Iterable[int]) -> list[int]:
    return list(itertools.accumulate(steps))
