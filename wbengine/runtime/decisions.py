"""Which nodes deciders and join rules let run, and what a refusal makes IGNORE.

`DecisionPoints` tell whether a node may run once everything before it is settled; `Ignored` knows
how far each refusal reaches; `recall` finds out what an earlier run decided, from the saved states.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from wbengine.deciders import Depth, Join, pick_widest
from wbengine.runtime.node_states import IGNORED, PENDING
from wbengine.runtime.plan import FLOW, FLOW_END, Edge, Plan

_NOBODY: Final[tuple[Edge, ...]] = ()


class DecisionPoints:
    """The nodes of a plan with deciders or a join rule, as the marks of one run tell of them.

    Everything directly before a node is settled when it is asked for; nothing here changes a mark.
    """

    __slots__ = ("_gone", "_marks", "_plan", "nodes")

    def __init__(self, plan: Plan, marks: bytearray) -> None:
        self._plan = plan
        self._marks = marks
        # What `gone` found out about exits of flows.
        self._gone: dict[int, bool] = {}
        #: Those with deciders or a join rule.
        self.nodes = plan.deciders.keys() | plan.joins.keys()

    def must_decide(self, node: int) -> bool:
        """Whether it has to be decided if the node runs: with a `ballot`, which may be empty."""
        if self._plan.joins.get(node) != Join.ANY:
            return bool(self.ballot(node))
        deciding = {edge.end for edge in self._plan.deciders.get(node, _NOBODY)}
        return not any(n not in deciding and not self.gone(n) for n in self._plan.pred[node])

    def ballot(self, node: int) -> list[Edge]:
        """The links whose deciders are asked."""
        edges = self._plan.deciders.get(node, _NOBODY)
        if node in self._plan.joins:
            return [edge for edge in edges if not self.gone(edge.end)]
        # TaskFlow's rule: a flow has its vote even if it was ignored.
        return [edge for edge in edges if edge.source < 0 or self._marks[edge.source] != IGNORED]

    def refused(self, node: int, refusals: Sequence[Edge]) -> Depth | None:
        """How deep a node is ignored when these links of its ballot said no; None: it runs."""
        if self._plan.joins.get(node) == Join.ANY:
            if len(refusals) < len(self.ballot(node)):
                return None
            if not refusals or any(self.gone(n) for n in self._plan.pred[node]):
                return Depth.ALL
        return pick_widest(edge.depth for edge in refusals) if refusals else None

    def gone(self, node: int) -> bool:
        """Whether a link that begins at the node cannot be taken, because its source was ignored.

        Of a flow that is so when all its last members were.  O(1); the first time O(members) of a
        flow.
        """
        if self._plan.kinds[node] != FLOW_END:
            return self._marks[node] == IGNORED
        known = self._gone.get(node)
        if known is None:
            known = self._gone[node] = self._all_gone(node)
        return known

    def _all_gone(self, node: int) -> bool:
        kinds, pred, marks = self._plan.kinds, self._plan.pred, self._marks
        work = [node]
        while work:
            n = work.pop()
            if kinds[n] == FLOW_END:
                work += pred[n]
            elif marks[n] != IGNORED:
                return False
        return True

    def forget(self) -> None:
        """Marks of nodes that were settled have changed."""
        self._gone.clear()


class Ignored:
    """Which nodes are ignored, and because of how much: several refusals may reach a node, and a
    retry takes some back.

    A refusal walks along the edges as far as nothing did before in the same manner; where it meets
    what is reached already it only counts one reason more.  To take it back, the same way is
    walked as far as no reason is left.  So the refusals of a run together cost O(V+E), and not the
    reach of each.
    """

    __slots__ = ("_marks", "_plan", "_reasons", "_refused")

    def __init__(self, plan: Plan, marks: bytearray) -> None:
        self._plan = plan
        self._marks = marks
        self._refused: dict[int, Depth] = {}
        # Node -> how many reasons it has to be ignored: that take what follows along everywhere, or
        # in the same flow, or not at all.
        self._reasons: dict[Depth, dict[int, int]] = {Depth.ALL: {}, Depth.FLOW: {}, Depth.ATOM: {}}

    def __contains__(self, node: int) -> bool:
        return any(node in reasons for reasons in self._reasons.values())

    def add(self, target: int, depth: Depth) -> list[int]:
        """A target was refused; returns what is reached, perhaps not for the first time."""
        self._refused[target] = depth
        return self._spread(target, depth, 1)

    def refuse(self, target: int, depth: Depth) -> list[int]:
        """`add` a target and mark what is reached; returns the atoms, ascending, that were not
        ignored yet.
        """
        marks = self._marks
        new = [n for n in set(self.add(target, depth)) if marks[n] == PENDING]
        for n in new:
            marks[n] = IGNORED
        return sorted(n for n in new if self._plan.is_atom(n))

    def take_back(self, scope: range) -> list[int]:
        """What targets in `scope` refused is refused no more.

        Returns those behind the scope that are PENDING now, because no reason is left.
        """
        if not self._refused:
            return []
        marks = self._marks
        left = []
        for target in scope:
            depth = self._refused.pop(target, None)
            if depth is not None:
                left += self._spread(target, depth, -1)
        back = {n for n in left if n >= scope.stop and marks[n] == IGNORED and n not in self}
        for n in back:
            marks[n] = PENDING
        return list(back)

    def _spread(self, target: int, depth: Depth, by: int) -> list[int]:
        """Add a reason for what a refusal reaches, or take it away.

        A flow as the target is ignored as a whole, and only ALL reaches further: it is its members
        that are in the same flow, and next to each other.  A node with a join rule is not reached,
        nor what is behind it; inside a flow that is ignored as a whole, everything is.

        Returns where it was the first reason of its manner, or the last one.
        """
        plan = self._plan
        succ, joins = plan.succ, plan.joins
        is_flow = plan.kinds[target] == FLOW and target not in plan.retried
        work = [(depth, target)]
        if depth == Depth.ATOM or (is_flow and depth != Depth.ALL):
            work = [(Depth.ATOM, n) for n in plan.whole(target)]
        elif depth == Depth.NEIGHBORS:
            after = succ[plan.whole(target)[-1]]
            near = [n for n in after if plan.is_like_task(n) and n not in joins]
            work = [(Depth.ATOM, m) for n in (target, *near) for m in plan.whole(n)]
        found = []
        while work:
            depth, node = work.pop()
            if not self._count(depth, node, by):
                continue
            found.append(node)
            if depth == Depth.ATOM:
                continue
            whole, wide = plan.whole(node), depth == Depth.ALL
            # A flow that is entered like this is ignored as a whole, whatever rules are in there.
            work += [(Depth.ATOM, n) for n in whole[1:]]
            work += [
                (depth, n)
                for n in succ[whole[-1]]
                if n not in joins and (wide or plan.is_like_task(n))
            ]
        return found

    def _count(self, depth: Depth, node: int, by: int) -> bool:
        """Whether it was the first reason, or the last one."""
        reasons = self._reasons[depth]
        before = reasons.get(node, 0)
        if before + by:
            reasons[node] = before + by
        else:
            del reasons[node]
        return not before or not before + by


def recall(plan: Plan, points: DecisionPoints, marks: bytearray, ignored: Ignored) -> set[int]:
    """Fill in who ignored whom, and mark the flows that were ignored.

    Decisions are not saved.  What they led to is: whoever was refused is IGNORE, and so is what was
    ignored with it.

    Returns the enter nodes that were let in: nobody is asked about them again.  O(V), and what each
    refusal reaches.
    """
    inside = _Inside(plan, marks)
    begun = set()
    # Whatever made a node ignored has a smaller id: who is not reached yet was refused itself.
    for node in sorted(points.nodes):
        if plan.kinds[node] == FLOW:
            if inside.any_begun(node):
                begun.add(node)
                continue
            refused = inside.is_ignored(node)
        else:
            refused = marks[node] == IGNORED
        if not refused or node in ignored or not points.must_decide(node):
            continue
        for n in ignored.add(node, _depth(plan, points, marks, node)):
            if not plan.is_atom(n) and (plan.kinds[n] != FLOW or inside.may_be_ignored(n)):
                marks[n] = IGNORED
    points.forget()
    return begun


def _depth(plan: Plan, points: DecisionPoints, marks: bytearray, node: int) -> Depth:
    """How deep a node was ignored that its ballot refused.

    Where deciders of several depths may have said no, the widest of them that fits what is ignored.
    """
    ballot = points.ballot(node)
    if plan.joins.get(node) == Join.ANY:
        return points.refused(node, ballot) or Depth.ALL
    depths = {edge.depth for edge in ballot}
    while True:
        depth = pick_widest(depths)
        depths.remove(depth)
        if not depths:
            return depth
        reached = Ignored(plan, marks).add(node, depth)
        if all(marks[n] == IGNORED for n in reached if plan.is_atom(n)):
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
