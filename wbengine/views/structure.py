"""What is inside what in a flow, and what comes before what."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from wbengine import states
from wbengine.persistence import models
from wbengine.types import outline as outlines
from wbengine.views.atoms import AtomView

__all__ = ["NodeView", "Structure", "grow", "outline_of", "state_of", "with_others"]

#: What a picture says of atoms that the records have and the flow does not.
LEFT_OVER: Final = "not part of the flow any more"


_NONE: Final[list[int]] = []


class Structure:
    """Looks things up in an outline; every table is made once, in O(nodes + edges)."""

    def __init__(self, outline: outlines.Outline) -> None:
        self.outline = outline
        self.parents: Sequence[int] = [
            -1 if node.parent is None else node.parent for node in outline.nodes
        ]

    def __len__(self) -> int:
        return len(self.outline.nodes)

    def is_flow(self, node: int) -> bool:
        return self.outline.nodes[node].kind == outlines.FLOW

    def name(self, node: int) -> str:
        return self.outline.nodes[node].name

    def atoms(self) -> Iterator[int]:
        """All but flows, in the order of the outline."""
        kind = outlines.FLOW
        return (number for number, node in enumerate(self.outline.nodes) if node.kind != kind)

    def tasks(self) -> Iterator[int]:
        """The atoms but retries."""
        kind = outlines.RETRY
        return (number for number in self.atoms() if self.outline.nodes[number].kind != kind)

    @cached_property
    def children(self) -> Sequence[Sequence[int]]:
        """Node -> what is directly in it."""
        inside = ((parent, node) for node, parent in enumerate(self.parents) if parent >= 0)
        return _grouped(len(self), inside)

    @cached_property
    def before(self) -> Sequence[Sequence[int]]:
        """Node -> what edges lead to it from."""
        return _grouped(len(self), ((after, before) for before, after in self.outline.edges))

    @cached_property
    def after(self) -> Sequence[Sequence[int]]:
        """Node -> what edges lead to from it."""
        return _grouped(len(self), self.outline.edges)

    @cached_property
    def retry(self) -> Sequence[int]:
        """Flow -> its retry, -1 if it has none."""
        found = [-1] * len(self)
        for number, node in enumerate(self.outline.nodes):
            if node.kind == outlines.RETRY and self.parents[number] >= 0:
                found[self.parents[number]] = number
        return found

    @cached_property
    def paths(self) -> Sequence[tuple[str, ...]]:
        """Node -> the names of the flows around it, the outermost first."""
        found: list[tuple[str, ...]] = []
        inside: dict[int, tuple[str, ...]] = {-1: ()}
        for number, node in enumerate(self.outline.nodes):
            path = inside[self.parents[number]]
            found.append(path)
            if node.kind == outlines.FLOW:
                inside[number] = (*path, node.name)
        return found

    def flows_around(self, node: int) -> Iterator[int]:
        """From the inside out."""
        node = self.parents[node]
        while node >= 0:
            yield node
            node = self.parents[node]


def _grouped(count: int, pairs: Iterable[tuple[int, int]]) -> Sequence[Sequence[int]]:
    """Number -> what it is paired with; most have nothing, which they share."""
    found: list[list[int]] = [_NONE] * count
    for one, other in pairs:
        if found[one] is _NONE:
            found[one] = [other]
        else:
            found[one].append(other)
    return found


def outline_of(detail: models.FlowDetail, atoms: Iterable[models.AtomDetail]) -> outlines.Outline:
    """What can be said of the structure of a flow by its records alone: what it consists of.

    Stores keep no order: what began first comes first, and what did not begin comes by name.
    """
    nodes = [outlines.OutlineNode(detail.name, outlines.FLOW, None)]
    nodes += [
        outlines.OutlineNode(atom.name, _kind(atom), 0) for atom in sorted(atoms, key=_beginning)
    ]
    return outlines.Outline(tuple(nodes), ())


def with_others(outline: outlines.Outline, others: Iterable[models.AtomDetail]) -> outlines.Outline:
    """`outline`, and at its end the atoms that are not in it."""
    more = tuple(
        outlines.OutlineNode(atom.name, _kind(atom), 0, None, LEFT_OVER)
        for atom in sorted(others, key=_beginning)
    )
    return outlines.Outline(outline.nodes + more, outline.edges) if more else outline


def _beginning(atom: models.AtomDetail) -> tuple[float, str]:
    first = atom.past[0].submitted if atom.past else atom.submitted
    return math.inf if first is None else first, atom.name


def _kind(atom: models.AtomDetail) -> str:
    if atom.kind == "retry":
        return outlines.RETRY
    return outlines.TASK if atom.items is None else outlines.MAP


#: What is said of a flow in which atoms are in these states: the first that is there.
_LOUDEST = (
    states.REVERT_FAILURE, states.FAILURE, states.REVERTING, states.RUNNING, states.RETRYING,
)  # fmt: skip


@dataclass(slots=True)
class NodeView:
    """A flow or an atom, and what is in it.

    The state of an inner flow is that of what it consists of; `counts` say how many of its tasks
    are in which state.
    """

    node: int
    name: str
    kind: str
    state: str
    counts: Counter[str]
    atom: AtomView | None
    notes: str | None = None
    children: list[NodeView] = field(default_factory=list)


def state_of(counts: Mapping[str, int]) -> str:
    """What state a flow is in whose atoms are in these.

    >>> state_of({"SUCCESS": 3, "PENDING": 1}), state_of({"SUCCESS": 3}), state_of({})
    ('RUNNING', 'SUCCESS', 'PENDING')
    """
    for state in _LOUDEST:
        if counts.get(state):
            return state
    there = {state for state, count in counts.items() if count}
    if not there or there == {states.PENDING}:
        return states.PENDING
    if there <= {states.SUCCESS, states.IGNORE}:
        return states.SUCCESS if states.SUCCESS in there else states.IGNORE
    if states.REVERTED in there:
        return states.REVERTED
    return states.RUNNING


def grow(outline: outlines.Outline, atoms: Sequence[AtomView]) -> NodeView:
    """The tree of a flow; O(nodes)."""
    by_node = {atom.node: atom for atom in atoms}
    made: list[NodeView] = []
    retries: list[Counter[str]] = []
    for number, node in enumerate(outline.nodes):
        atom = by_node.get(number)
        state = states.PENDING if atom is None else atom.state
        kind = node.kind if atom is None else atom.kind
        counts = Counter((state,) if kind not in (outlines.FLOW, outlines.RETRY) else ())
        retries.append(Counter((state,) if kind == outlines.RETRY else ()))
        made.append(NodeView(number, node.name, kind, state, counts, atom, node.notes))
        if node.parent is not None:
            made[node.parent].children.append(made[number])
    for number in range(len(made) - 1, -1, -1):
        each, parent = made[number], outline.nodes[number].parent
        if each.kind == outlines.FLOW:
            each.state = state_of(each.counts + retries[number])
        if parent is not None:
            made[parent].counts += each.counts
            retries[parent] += retries[number]
    return made[0]
