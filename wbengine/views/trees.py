"""What is inside what in a flow, with its states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wbengine import states
from wbengine.types import outline as outlines
from wbengine.views.atoms import AtomView

__all__ = ["NodeView", "grow", "state_of"]

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
