"""What one turn of the loop may begin, and what is ready and has to wait for a later one."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from wbengine.runtime.marks import READY, RUNNING
from wbengine.runtime.plan import Plan

#: Most queues are empty in most turns.
NONE: Final[Sequence[int]] = ()


@dataclass(slots=True, eq=False)
class Turn:
    """What became possible since the last turn; each list by priority (bigger first), then id."""

    execute: Sequence[int] = NONE
    revert: Sequence[int] = NONE
    #: Retries that execute again; call `reset_scope` of each before it does.
    retry: Sequence[int] = NONE
    #: Targets to be voted on: answer each with `decide`, `approve` or `failed`.
    votes: Sequence[int] = NONE

    def __bool__(self) -> bool:
        return bool(self.votes or self.execute or self.revert or self.retry)


class Later:
    """Nodes that wait for one of the next turns, by priority (bigger first), then id.

    It may hold what was called off meanwhile; the marks tell.
    """

    __slots__ = ("_items", "_marks", "heap")

    def __init__(self, plan: Plan, marks: bytearray) -> None:
        self._items = plan.items
        self._marks = marks
        #: Empty as long as every turn had room for all.
        self.heap: list[tuple[Any, int]] = []

    def take(self, ready: list[int], most: int | None) -> list[int]:
        """Add `ready`; take out at most `most`, in order, which are RUNNING from now on."""
        items, marks, heap = self._items, self._marks, self.heap
        fresh = [(-getattr(items[node], "priority", 0), node) for node in ready]
        if len(fresh) > len(heap):
            heap += fresh
            heapq.heapify(heap)
        else:
            for place in fresh:
                heapq.heappush(heap, place)
        found: list[int] = []
        while heap and (most is None or len(found) < most):
            node = heapq.heappop(heap)[1]
            if marks[node] == READY:
                marks[node] = RUNNING
                found.append(node)
        return found
