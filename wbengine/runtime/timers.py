"""What is to happen at a time rather than in consequence of something.

Pure: the time is an argument, seconds of a clock that never goes back.
"""

from __future__ import annotations

import heapq
import math
from typing import Final

__all__ = ["LONGEST", "Timers"]

#: Longer waits are made of several: neither a lock nor a queue waits for ever and a day.
LONGEST: Final = 86400.0


class Timers:
    """When nodes are due, each at most once, and when the whole run is.

    A node costs O(log n) when it is set and when it comes due, and nothing while it waits.
    """

    __slots__ = ("_due", "_heap", "deadline")

    def __init__(self, deadline: float = math.inf) -> None:
        #: When the time of the whole run is up.
        self.deadline = deadline
        self._due: dict[int, float] = {}
        # Holds also what was set anew since; `_due` tells.
        self._heap: list[tuple[float, int]] = []

    def set(self, node: int, due: float) -> None:
        """Let `node` come due at `due`, whatever was said of it before."""
        self._due[node] = due
        heapq.heappush(self._heap, (due, node))

    def pop(self, now: float) -> list[int]:
        """Take out the nodes that are due, the earliest first."""
        due, heap = self._due, self._heap
        found = []
        while heap and heap[0][0] <= now:
            when, node = heapq.heappop(heap)
            if due.get(node) == when:
                del due[node]
                found.append(node)
        return found

    def passed(self, now: float) -> bool:
        """Whether something is due: a node, or the whole run."""
        return now >= self.deadline or (bool(self._heap) and self._heap[0][0] <= now)

    def wait(self, now: float, most: float | None = None) -> float | None:
        """How many seconds may pass until something is due; at most `most`.  None: any number."""
        due = min(self.deadline, self._heap[0][0] if self._heap else math.inf)
        if most is not None:
            due = min(due, now + most)
        return None if due == math.inf else min(max(due - now, 0.0), LONGEST)
