"""What was decided in an earlier run, found out from the saved states of the atoms.

Votes are not saved.  What they led to is: whoever was refused is IGNORE, and so is what was ignored
with it.
"""

from __future__ import annotations

from bisect import bisect_left

from wbengine.deciders import Depth, Join, pick_widest
from wbengine.runtime.ignoring import Ignored, reach
from wbengine.runtime.joining import Gates
from wbengine.runtime.marks import IGNORED, PENDING
from wbengine.runtime.plan import FLOW, Plan


def recall(plan: Plan, gates: Gates, marks: bytearray, ignored: Ignored) -> set[int]:
    """Fill in who ignored whom, and mark the flows that were ignored.

    Returns the enter nodes that were let in: nobody is asked about them again.  O(V), and what each
    refusal reaches.
    """
    inside = _Inside(plan, marks)
    begun = set()
    # Whatever made a node ignored has a smaller id: who is not reached yet was refused itself.
    for node in sorted(gates.nodes):
        if plan.kinds[node] == FLOW:
            if inside.any_begun(node):
                begun.add(node)
                continue
            refused = inside.is_ignored(node)
        else:
            refused = marks[node] == IGNORED
        if not refused or node in ignored or not gates.closed(node):
            continue
        for n in ignored.add(node, _depth(plan, gates, marks, node)):
            if not plan.is_atom(n) and (plan.kinds[n] != FLOW or inside.may_be_ignored(n)):
                marks[n] = IGNORED
    gates.forget()
    return begun


def _depth(plan: Plan, gates: Gates, marks: bytearray, node: int) -> Depth:
    """How deep a node was ignored that its ballot refused.

    Where deciders of several depths may have said no, the widest of them that fits what is ignored.
    """
    ballot = gates.ballot(node)
    if plan.joins.get(node) == Join.ANY:
        return gates.refused(node, ballot) or Depth.ALL
    depths = {edge.depth for edge in ballot}
    while True:
        depth = pick_widest(depths)
        depths.remove(depth)
        if not depths:
            return depth
        if all(marks[n] == IGNORED for n in reach(plan, node, depth) if plan.is_atom(n)):
            return depth


class _Inside:
    """What the atoms inside a flow have become."""

    def __init__(self, plan: Plan, marks: bytearray) -> None:
        self._end = plan.end
        atoms = list(plan.atoms())
        self._pending = [n for n in atoms if marks[n] == PENDING]
        self._ignored = [n for n in atoms if marks[n] == IGNORED]
        self._begun = [n for n in atoms if marks[n] not in (PENDING, IGNORED)]

    def any_begun(self, enter: int) -> bool:
        return self._any(self._begun, enter)

    def may_be_ignored(self, enter: int) -> bool:
        return not self._any(self._begun, enter) and not self._any(self._pending, enter)

    def is_ignored(self, enter: int) -> bool:
        return self._any(self._ignored, enter) and self.may_be_ignored(enter)

    def _any(self, ids: list[int], enter: int) -> bool:
        at = bisect_left(ids, enter)
        return at < len(ids) and ids[at] < self._end[enter]
