"""Short notation of the state changes of a run.

A trace is a line of words, one for each change of state of an atom: a mark and the atom's name.
`>a +a >b !b <b -b <a -a` is the trace of a flow whose second task failed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import networkx as nx

from wbengine import states
from wbengine._concurrency import clocks, manual_clock
from wbengine.engines import base

MARKS = {
    states.RUNNING: ">",
    states.SUCCESS: "+",
    states.FAILURE: "!",
    states.REVERTING: "<",
    states.REVERTED: "-",
    states.REVERT_FAILURE: "#",
    states.IGNORE: "~",
    states.PENDING: ".",
    states.RETRYING: "?",
}

#: Marks of atoms that others may follow, and of atoms without anything to revert.
SETTLED = "+~"
UNDONE = ".-~"


class Recorder:
    """Recorder of all states of an engine.

    :param takes: seconds that pass on a manual `clock` at words, or at all words with a mark.
    """

    def __init__(
        self,
        engine: base.Engine,
        clock: clocks.Clock = clocks.SYSTEM,
        takes: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self.words: list[str] = []
        #: Times of words.
        self.times: dict[str, list[float]] = defaultdict(list)
        self._clock, self._takes, self._start = clock, takes, clock.monotonic()
        self.flow: list[str] = []
        #: Results of reversions by atom, in order.
        self.told: dict[str, list[Any]] = defaultdict(list)
        self._engine = engine
        engine.atom_notifier.register("*", self._on_atom)
        engine.notifier.register("*", self._on_flow)

    def _on_atom(self, state: str, details: dict[str, Any]) -> None:
        name = details.get("task_name") or details["retry_name"]
        word = MARKS[state] + name
        self.words.append(word)
        self.times[word].append(self._clock.monotonic() - self._start)
        if isinstance(self._clock, manual_clock.ManualClock):
            self._clock.advance(self._takes.get(word, self._takes.get(word[0], 0.0)))
        if state == states.REVERTED and details["result"] is not None:
            self.told[name].append(details["result"])

    def _on_flow(self, state: str, details: dict[str, Any]) -> None:
        assert details["flow_name"] == self._engine.storage.flow_name
        self.flow.append(state)


def by_atom(words: list[str]) -> dict[str, str]:
    """Return the marks of each atom in order."""
    words_by_atom: dict[str, str] = defaultdict(str)
    for word in words:
        words_by_atom[word[1:]] += word[0]
    return dict(words_by_atom)


def check_order(words: list[str], rule: str) -> None:
    """Check for a rule `"+a >b"` that each first event precedes the second."""
    first, second = ([i for i, word in enumerate(words) if word == w] for w in rule.split())
    assert first and second, f"nothing to compare for {rule!r} in {' '.join(words)}"
    for one, other in zip(first, second, strict=False):
        assert one < other, f"{rule!r} does not hold in {' '.join(words)}"


def check_links(words: list[str], graph: nx.DiGraph[Any]) -> None:
    """Check that atoms started after their dependencies, and were reverted before them."""
    atoms = {node.name: node for node, data in graph.nodes.items() if not data["noop"]}

    def named(nodes: set[Any]) -> set[str]:
        return {node.name for node in nodes if atoms.get(node.name) is node}

    before = {name: named(nx.ancestors(graph, node)) for name, node in atoms.items()}
    after = {name: named(nx.descendants(graph, node)) for name, node in atoms.items()}
    now = dict.fromkeys(atoms, ".")
    for place, word in enumerate(words):
        mark, name = word[0], word[1:]
        wrong: set[str] = set()
        if mark == ">" and now[name] != "?":
            wrong = {other for other in before[name] if now[other] not in SETTLED}
        elif mark in "<?":
            wrong = {other for other in after[name] if now[other] not in UNDONE}
        assert not wrong, f"{word!r} came too early for {wrong} in {' '.join(words[: place + 1])}"
        now[name] = mark
