"""What waits to be handed out, in the order in which it will be."""

from __future__ import annotations

import heapq
from typing import Any, Final

from wbengine._core.plan import Plan
from wbengine._core.progress import (
    AGAIN,
    ASKED,
    DUE,
    READY,
    RERUN,
    REVERTING,
    RUNNING,
    VOTE,
)

#: What a waiting node becomes when it is handed out.
_THEN: Final = {
    VOTE: ASKED,
    READY: RUNNING,
    RERUN: RUNNING,
    DUE: REVERTING,
    AGAIN: RUNNING,
}


class Waiting:
    """Queues of nodes, one for each mark that means waiting.

    A node is called off by giving it another mark: queues may hold what waits no longer.  Whoever
    does so counts it off in `count`, too.
    """

    __slots__ = ("_items", "_later", "_marks", "_queues", "count")

    def __init__(self, plan: Plan, marks: bytearray, rerun: list[int]) -> None:
        self._items = plan.items
        self._marks = marks
        self._queues: dict[int, list[int]] = {VOTE: [], READY: [], RERUN: rerun, DUE: [], AGAIN: []}
        self._later: list[tuple[Any, int]] = []
        #: How many nodes wait to be handed out or answered.
        self.count = 0

    def push(self, node: int, mark: int) -> None:
        """Let a node wait as `mark` says."""
        self._marks[node] = mark
        self.count += 1
        self._queues[mark].append(node)

    def drain(self, mark: int) -> list[int]:
        """Take all that wait as `mark` says, by priority (bigger first), then id."""
        queue = self._queues[mark]
        if not queue:
            return []
        found = []
        marks, then = self._marks, _THEN[mark]
        for node in queue:
            if marks[node] == mark:
                marks[node] = then
                found.append(node)
        queue.clear()
        return self.ordered(found)

    def drain_some(self, most: int | None) -> list[int]:
        """As `drain` of what is READY, but no more than `most`; what is left over keeps its place
        in a heap.
        """
        ready, later = self._queues[READY], self._later
        if not later and (most is None or len(ready) <= most):
            return self.drain(READY)
        items, marks = self._items, self._marks
        fresh = [(-getattr(items[node], "priority", 0), node) for node in ready]
        ready.clear()
        if len(fresh) > len(later):
            later += fresh
            heapq.heapify(later)
        else:
            for place in fresh:
                heapq.heappush(later, place)
        found: list[int] = []
        while later and (most is None or len(found) < most):
            node = heapq.heappop(later)[1]
            if marks[node] == READY:
                marks[node] = RUNNING
                found.append(node)
        return found

    def ordered(self, nodes: list[int]) -> list[int]:
        """Sort `nodes`, in place, by priority (bigger first), then id."""
        if len(nodes) > 1:
            items = self._items
            nodes.sort()
            nodes.sort(key=lambda node: -getattr(items[node], "priority", 0))
        return nodes
