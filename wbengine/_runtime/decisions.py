"""Decide which nodes run, by deciders and join rules, and which nodes a refusal ignores."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from wbengine._runtime.node_states import IGNORED, PENDING
from wbengine._runtime.plan import FLOW, FLOW_END, Edge, Plan
from wbengine.deciders import Depth, Join, pick_widest

_NOBODY: Final[tuple[Edge, ...]] = ()


class DecisionPoints:
    """The nodes of a plan with deciders or a join rule, evaluated on the marks of a run.

    All direct predecessors of a node must be settled before a query. Queries do not change marks.
    """

    __slots__ = ("_ignored_exits", "_marks", "_plan", "nodes")

    def __init__(self, plan: Plan, marks: bytearray) -> None:
        self._plan = plan
        self._marks = marks
        self._ignored_exits: dict[int, bool] = {}
        self.nodes = plan.deciders.keys() | plan.joins.keys()

    def must_decide(self, node: int) -> bool:
        """Return whether a decision is needed for the node. Its `ballot` may be empty."""
        if self._plan.joins.get(node) != Join.ANY:
            return bool(self.ballot(node))
        deciding = {edge.end for edge in self._plan.deciders.get(node, _NOBODY)}
        return not any(n not in deciding and not self.is_ignored(n) for n in self._plan.pred[node])

    def ballot(self, node: int) -> list[Edge]:
        edges = self._plan.deciders.get(node, _NOBODY)
        if node in self._plan.joins:
            return [edge for edge in edges if not self.is_ignored(edge.end)]
        # TaskFlow's rule: a decider whose source is a flow is called even if the flow was ignored.
        return [edge for edge in edges if edge.source < 0 or self._marks[edge.source] != IGNORED]

    def refused(self, node: int, refusals: Sequence[Edge]) -> Depth | None:
        """Return the depth at which a node is ignored after these refusals, or None if it runs."""
        if self._plan.joins.get(node) == Join.ANY:
            if len(refusals) < len(self.ballot(node)):
                return None
            if not refusals or any(self.is_ignored(n) for n in self._plan.pred[node]):
                return Depth.ALL
        return pick_widest(edge.depth for edge in refusals) if refusals else None

    def is_ignored(self, node: int) -> bool:
        """Return whether links from this node cannot be taken because it was ignored.

        A flow counts as ignored if all its last members were. O(1), after O(members) for the first
        query of a flow.
        """
        if self._plan.kinds[node] != FLOW_END:
            return self._marks[node] == IGNORED
        is_gone = self._ignored_exits.get(node)
        if is_gone is None:
            is_gone = self._ignored_exits[node] = self._are_all_ignored(node)
        return is_gone

    def _are_all_ignored(self, node: int) -> bool:
        kinds, pred, marks = self._plan.kinds, self._plan.pred, self._marks
        pending = [node]
        while pending:
            n = pending.pop()
            if kinds[n] == FLOW_END:
                pending += pred[n]
            elif marks[n] != IGNORED:
                return False
        return True

    def clear_cache(self) -> None:
        """Clear the cache after marks of settled nodes changed."""
        self._ignored_exits.clear()


class Ignored:
    """The ignored nodes, with the number of refusals that reach each of them.

    A retry controller takes refusals back. A refusal follows the edges until it meets nodes that a
    refusal of the same depth has reached; there it only increments a counter. Taking it back
    follows the same path until a counter stays above zero. All refusals of a run together therefore
    cost O(V+E), not the sum of what each of them reaches.
    """

    __slots__ = ("_marks", "_plan", "_reasons", "_refused")

    def __init__(self, plan: Plan, marks: bytearray) -> None:
        self._plan = plan
        self._marks = marks
        self._refused: dict[int, Depth] = {}
        # Counters by node, for each depth: ALL includes all successors, FLOW those in the same
        # flow, ATOM only the node.
        self._reasons: dict[Depth, dict[int, int]] = {Depth.ALL: {}, Depth.FLOW: {}, Depth.ATOM: {}}

    def __contains__(self, node: int) -> bool:
        return any(node in reasons for reasons in self._reasons.values())

    def add(self, target: int, depth: Depth) -> list[int]:
        """Add a refused target; return the nodes reached, which may have been ignored before."""
        self._refused[target] = depth
        return self._spread(target, depth, 1)

    def refuse(self, target: int, depth: Depth) -> list[int]:
        """Add a refused target; mark and return the newly ignored atoms, ascending."""
        marks = self._marks
        newly_ignored = [n for n in set(self.add(target, depth)) if marks[n] == PENDING]
        for n in newly_ignored:
            marks[n] = IGNORED
        return sorted(n for n in newly_ignored if self._plan.is_atom(n))

    def take_back(self, scope: range) -> list[int]:
        """Take back the refusals of targets in `scope`.

        :returns: nodes after the scope that are PENDING again because no refusal reaches them.
        """
        if not self._refused:
            return []
        marks = self._marks
        released = []
        for target in scope:
            depth = self._refused.pop(target, None)
            if depth is not None:
                released += self._spread(target, depth, -1)
        reopened = {
            n for n in released if n >= scope.stop and marks[n] == IGNORED and n not in self
        }
        for n in reopened:
            marks[n] = PENDING
        return list(reopened)

    def _spread(self, target: int, depth: Depth, change: int) -> list[int]:
        """Add (`change` is 1) or subtract (-1) a refusal on all nodes that it reaches.

        A flow as the target is ignored as a whole; only depth ALL reaches its successors. A refusal
        does not pass nodes with a join rule, except inside a flow that is ignored as a whole.

        :returns: nodes whose counter of this depth changed from or to zero.
        """
        plan = self._plan
        succ, joins = plan.succ, plan.joins
        is_flow = plan.kinds[target] == FLOW and target not in plan.retried
        pending = [(depth, target)]
        if depth == Depth.ATOM or (is_flow and depth != Depth.ALL):
            pending = [(Depth.ATOM, n) for n in plan.whole(target)]
        elif depth == Depth.NEIGHBORS:
            successors = succ[plan.whole(target)[-1]]
            neighbors = [n for n in successors if plan.is_like_task(n) and n not in joins]
            pending = [(Depth.ATOM, m) for n in (target, *neighbors) for m in plan.whole(n)]
        changed_nodes = []
        while pending:
            depth, node = pending.pop()
            if not self._count(depth, node, change):
                continue
            changed_nodes.append(node)
            if depth == Depth.ATOM:
                continue
            node_range, all_successors = plan.whole(node), depth == Depth.ALL
            # A flow that is reached here is ignored as a whole, whatever rules it contains.
            pending += [(Depth.ATOM, n) for n in node_range[1:]]
            pending += [
                (depth, n)
                for n in succ[node_range[-1]]
                if n not in joins and (all_successors or plan.is_like_task(n))
            ]
        return changed_nodes

    def _count(self, depth: Depth, node: int, change: int) -> bool:
        reasons = self._reasons[depth]
        count = reasons.get(node, 0)
        if count + change:
            reasons[node] = count + change
        else:
            del reasons[node]
        return not count or not count + change


def restore_decisions(
    plan: Plan, points: DecisionPoints, marks: bytearray, ignored: Ignored
) -> set[int]:
    """Derive refusals from saved states, and mark the ignored flows.

    Only the effects of decisions are saved: a refused node and all nodes ignored with it are in
    IGNORE. Takes O(V) plus the reach of each refusal.

    :returns: enter nodes of flows that have begun; their deciders are not called again.
    """
    inside = _FlowContents(plan, marks)
    begun = set()
    # Causes have smaller ids than their effects, so an ignored node that is not reached yet was
    # refused itself.
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
    points.clear_cache()
    return begun


def _depth(plan: Plan, points: DecisionPoints, marks: bytearray, node: int) -> Depth:
    """Return the widest depth that is consistent with the ignored nodes."""
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


class _FlowContents:
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
