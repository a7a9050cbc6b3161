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

__all__ = [
    "GROUP",
    "NodeView",
    "Structure",
    "grow",
    "outline_of",
    "state_of",
    "summed",
    "with_others",
]

#: What a picture says of atoms that the records have and the flow does not.
LEFT_OVER: Final = "not part of the flow any more"

#: The kind of what stands for several members of one flow.
GROUP: Final = "group"


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

    def atoms(self) -> Iterator[int]:
        """All but flows, in the order of the outline."""
        kind = outlines.FLOW
        return (number for number, node in enumerate(self.outline.nodes) if node.kind != kind)

    def tasks(self) -> Iterator[int]:
        """The atoms but retries."""
        kind = outlines.RETRY
        return (number for number in self.atoms() if self.outline.nodes[number].kind != kind)

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
    root = outlines.OutlineNode(detail.name, outlines.FLOW, None)
    return with_others(outlines.Outline((root,), ()), atoms, notes=None)


def with_others(
    outline: outlines.Outline,
    others: Iterable[models.AtomDetail],
    notes: str | None = LEFT_OVER,
) -> outlines.Outline:
    """`outline`, and at its end the atoms that are not in it."""
    more = tuple(
        outlines.OutlineNode(atom.name, _kind(atom), 0, None, notes)
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
    """A flow or an atom, or a row of these that a picture shows as one (`GROUP`); what is in it.

    The state of an inner flow is that of what it consists of; `counts` say how many of its tasks
    are in which state, `atom_counts` how many of its atoms: retries, too.
    """

    node: int
    name: str
    kind: str
    state: str
    counts: Mapping[str, int]
    atom_counts: Mapping[str, int]
    atom: AtomView | None = None
    task: str | None = None
    notes: str | None = None
    children: list[NodeView] = field(default_factory=list)

    @property
    def is_atom(self) -> bool:
        return self.kind not in (outlines.FLOW, GROUP)

    @property
    def size(self) -> int:
        """How many atoms it has, or is."""
        return sum(self.atom_counts.values())

    def walk(self) -> Iterator[NodeView]:
        """It, and all that is in it: what is around comes before what is in it."""
        pending = [self]
        for each in pending:
            yield each
            pending += each.children


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


def grow(outline: outlines.Outline, atoms: Iterable[AtomView]) -> NodeView:
    """The tree of a flow; O(nodes)."""
    by_node = {atom.node: atom for atom in atoms}
    made: list[NodeView] = []
    for number, (name, kind, parent, task, notes, *_) in enumerate(outline.nodes):
        atom = by_node.get(number)
        state = states.PENDING if atom is None else atom.state
        one = {state: 1}
        counts = {} if kind == outlines.RETRY else one
        kind = kind if atom is None else atom.kind
        each = NodeView(number, name, kind, state, counts, one, atom, task, notes)
        made.append(each)
        if parent is not None:
            made[parent].children.append(each)
    for each in reversed(made):
        if each.kind == outlines.FLOW:
            each.counts = summed(inside.counts for inside in each.children)
            each.atom_counts = summed(inside.atom_counts for inside in each.children)
            each.state = state_of(each.atom_counts)
    return made[0]


def summed(several: Iterable[Mapping[str, int]]) -> Counter[str]:
    """How many there are in which state, of all of these together."""
    found: Counter[str] = Counter()
    for counts in several:
        for state, count in counts.items():
            found[state] += count
    return found
