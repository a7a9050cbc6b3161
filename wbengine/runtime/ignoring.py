"""What a decider's "no" reaches, and who said it."""

from __future__ import annotations

from wbengine.deciders import Depth
from wbengine.runtime.marks import IGNORED, PENDING
from wbengine.runtime.plan import FLOW, TASK, Plan


def reach(plan: Plan, node: int, depth: Depth) -> list[int]:
    """The target and what `depth` adds to it, ascending.

    A flow as the target is ignored as a whole, and only ALL reaches further: it is its members that
    are in the same flow, and next to each other.  A node with a join rule is not reached, nor what
    is behind it; inside a flow that is ignored as a whole, everything is.
    """
    kinds, joins, end = plan.kinds, plan.joins, plan.end
    is_flow = kinds[node] == FLOW
    tail = end[node] if is_flow else node
    reached = set(range(node, tail + 1))
    near = depth == Depth.ATOM or (is_flow and depth != Depth.ALL)
    work = [] if near else [tail]
    while work:
        for n in plan.succ[work.pop()]:
            if n in reached or n in joins:
                continue
            if kinds[n] == TASK:
                reached.add(n)
                if depth != Depth.NEIGHBORS:
                    work.append(n)
            elif depth == Depth.ALL:
                # Only ALL goes into the flows that follow, and out of the flow it began in.
                last = end.get(n, n)
                reached.update(range(n, last + 1))
                work.append(last)
    return sorted(reached)


class Ignored:
    """Which nodes are ignored, and because of how much: several refusals may reach a node, and a
    retry takes some back.

    A refusal walks along the edges as far as nothing did before in the same manner; where it meets
    what is reached already it only counts one reason more.  To take it back, the same way is
    walked as far as no reason is left.  So the refusals of a run together cost O(V+E), and not the
    reach of each.
    """

    __slots__ = ("_marks", "_plan", "_reasons", "_refused", "steps")

    def __init__(self, plan: Plan, marks: bytearray) -> None:
        self._plan = plan
        self._marks = marks
        self._refused: dict[int, Depth] = {}
        # Node -> how many reasons it has to be ignored: that take what follows along everywhere, or
        # in the same flow, or not at all.
        self._reasons: dict[Depth, dict[int, int]] = {Depth.ALL: {}, Depth.FLOW: {}, Depth.ATOM: {}}
        #: How many edges and nodes were looked at.
        self.steps = 0

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

        Returns where it was the first reason of its manner, or the last one.
        """
        plan = self._plan
        kinds, succ, end, joins = plan.kinds, plan.succ, plan.end, plan.joins
        is_flow = kinds[target] == FLOW
        work = [(depth, target)]
        if is_flow and depth != Depth.ALL:
            work = [(Depth.ATOM, n) for n in range(target, end[target] + 1)]
        elif depth == Depth.NEIGHBORS:
            near = [n for n in succ[target] if kinds[n] == TASK and n not in joins]
            work = [(Depth.ATOM, n) for n in (target, *near)]
        found = []
        while work:
            depth, node = work.pop()
            self.steps += 1
            if not self._count(depth, node, by):
                continue
            found.append(node)
            if depth == Depth.ATOM:
                continue
            last = end.get(node, node)
            # A flow that is entered like this is ignored as a whole, whatever rules are in there.
            work += [(Depth.ATOM, n) for n in range(node + 1, last + 1)]
            wide = depth == Depth.ALL
            work += [
                (depth, n) for n in succ[last] if n not in joins and (wide or kinds[n] == TASK)
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
