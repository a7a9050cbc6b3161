"""Nesting and order of the atoms of a flow."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from wbengine import states
from wbengine.persistence import models
from wbengine.types import _outline as outlines
from wbengine.views._atoms import AtomView

__all__ = [
    "GROUP",
    "WORKFLOW",
    "NodeView",
    "Structure",
    "build_tree",
    "outline_of",
    "state_of",
    "sum_counts",
    "with_others",
]

#: Note of atoms that have a record but are not part of the flow.
REMOVED_NOTE: Final = "removed from the flow"

#: Kind of a node that represents several members of one flow.
GROUP: Final = "group"
#: Kind of a node for a workflow that is drawn with its steps.
WORKFLOW: Final = "workflow"


_EMPTY: Final[list[int]] = []


class Structure:
    """Lookup tables for an outline. Each is built on first use, in O(nodes + edges)."""

    def __init__(self, outline: outlines.Outline) -> None:
        self.outline = outline
        self.parents: Sequence[int] = [
            -1 if node.parent is None else node.parent for node in outline.nodes
        ]

    def __len__(self) -> int:
        return len(self.outline.nodes)

    def atoms(self) -> Iterator[int]:
        """Return all nodes except flows, in the order of the outline."""
        kind = outlines.FLOW
        return (number for number, node in enumerate(self.outline.nodes) if node.kind != kind)

    def tasks(self) -> Iterator[int]:
        """Return all atoms except retry controllers."""
        kind = outlines.RETRY
        return (number for number in self.atoms() if self.outline.nodes[number].kind != kind)

    @cached_property
    def before(self) -> Sequence[Sequence[int]]:
        """Direct predecessors of each node."""
        return _grouped(len(self), ((after, before) for before, after in self.outline.edges))

    @cached_property
    def after(self) -> Sequence[Sequence[int]]:
        """Direct successors of each node."""
        return _grouped(len(self), self.outline.edges)

    @cached_property
    def retry(self) -> Sequence[int]:
        """Retry controller of each flow, or -1."""
        retries = [-1] * len(self)
        for number, node in enumerate(self.outline.nodes):
            if node.kind == outlines.RETRY and self.parents[number] >= 0:
                retries[self.parents[number]] = number
        return retries

    @cached_property
    def paths(self) -> Sequence[tuple[str, ...]]:
        """Names of the enclosing flows of each node, outermost first."""
        paths: list[tuple[str, ...]] = []
        inner_paths: dict[int, tuple[str, ...]] = {-1: ()}
        for number, node in enumerate(self.outline.nodes):
            path = inner_paths[self.parents[number]]
            paths.append(path)
            if node.kind == outlines.FLOW:
                inner_paths[number] = (*path, node.name)
        return paths

    def flows_around(self, node: int) -> Iterator[int]:
        """Yield the enclosing flows, innermost first."""
        node = self.parents[node]
        while node >= 0:
            yield node
            node = self.parents[node]


def _grouped(count: int, pairs: Iterable[tuple[int, int]]) -> Sequence[Sequence[int]]:
    """Group pairs by their first number. All empty groups share one list."""
    groups: list[list[int]] = [_EMPTY] * count
    for key, value in pairs:
        if groups[key] is _EMPTY:
            groups[key] = [value]
        else:
            groups[key].append(value)
    return groups


def outline_of(detail: models.FlowDetail, atoms: Iterable[models.AtomDetail]) -> outlines.Outline:
    """Return an outline that contains only the atoms of the records, without their structure.

    Stores have no order: atoms are ordered by their first submission, then by name.
    """
    root = outlines.OutlineNode(detail.name, outlines.FLOW, None)
    return with_others(outlines.Outline((root,), ()), atoms, notes=None)


def with_others(
    outline: outlines.Outline,
    others: Iterable[models.AtomDetail],
    notes: str | None = REMOVED_NOTE,
) -> outlines.Outline:
    """Return `outline` with other atoms appended."""
    nodes = tuple(
        outlines.OutlineNode(atom.name, _kind(atom), 0, None, notes)
        for atom in sorted(others, key=_submission_order)
    )
    return outlines.Outline(outline.nodes + nodes, outline.edges) if nodes else outline


def _submission_order(atom: models.AtomDetail) -> tuple[float, str]:
    first_submitted = atom.past[0].submitted if atom.past else atom.submitted
    return math.inf if first_submitted is None else first_submitted, atom.name


def _kind(atom: models.AtomDetail) -> str:
    if atom.kind == "retry":
        return outlines.RETRY
    return outlines.TASK if atom.items is None else outlines.MAP


#: The state of a flow is the first of these states that one of its atoms has.
_STATE_PRECEDENCE = (
    states.REVERT_FAILURE, states.FAILURE, states.REVERTING, states.RUNNING, states.RETRYING,
)  # fmt: skip


@dataclass(slots=True)
class NodeView:
    """A flow, an atom, or a group of members that is drawn as one node (`GROUP`).

    :ivar state: state of an atom; for a flow, the state computed from its atoms.
    :ivar counts: number of tasks by state.
    :ivar atom_counts: number of atoms by state, including retry controllers.
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
        return self.kind not in (outlines.FLOW, GROUP, WORKFLOW)

    @property
    def size(self) -> int:
        """Number of atoms in this node."""
        return sum(self.atom_counts.values())

    def walk(self) -> Iterator[NodeView]:
        """Yield this node and all nodes in it, parents before their children."""
        pending = [self]
        for each in pending:
            yield each
            pending += each.children


def state_of(counts: Mapping[str, int]) -> str:
    """Return the state of a flow from the number of its atoms by state.

    >>> state_of({"SUCCESS": 3, "PENDING": 1}), state_of({"SUCCESS": 3}), state_of({})
    ('RUNNING', 'SUCCESS', 'PENDING')
    """
    for state in _STATE_PRECEDENCE:
        if counts.get(state):
            return state
    present_states = {state for state, count in counts.items() if count}
    if not present_states or present_states == {states.PENDING}:
        return states.PENDING
    if present_states <= {states.SUCCESS, states.IGNORE}:
        return states.SUCCESS if states.SUCCESS in present_states else states.IGNORE
    if states.REVERTED in present_states:
        return states.REVERTED
    return states.RUNNING


def build_tree(outline: outlines.Outline, atoms: Iterable[AtomView]) -> NodeView:
    """Return the tree of a flow. The cost is O(nodes)."""
    by_node = {atom.node: atom for atom in atoms}
    views: list[NodeView] = []
    for number, (name, kind, parent, task, notes, *_) in enumerate(outline.nodes):
        atom = by_node.get(number)
        state = states.PENDING if atom is None else atom.shown_state
        own_count = {state: 1}
        counts = {} if kind == outlines.RETRY else own_count
        kind = kind if atom is None else atom.kind
        view = NodeView(number, name, kind, state, counts, own_count, atom, task, notes)
        views.append(view)
        if parent is not None:
            views[parent].children.append(view)
    for view in reversed(views):
        if view.kind == outlines.FLOW:
            view.counts = sum_counts(child.counts for child in view.children)
            view.atom_counts = sum_counts(child.atom_counts for child in view.children)
            view.state = state_of(view.atom_counts)
    return views[0]


def sum_counts(counts_of_parts: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Return the sum of several counts by state."""
    total: Counter[str] = Counter()
    for counts in counts_of_parts:
        for state, count in counts.items():
            total[state] += count
    return total
