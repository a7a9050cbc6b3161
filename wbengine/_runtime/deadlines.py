"""Deadlines of a run.

Pure: the time is an argument, in seconds of a monotonic clock.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Hashable
from typing import Any, Final

__all__ = ["MAX_WAIT_SECONDS", "Timers"]

#: Longer waits are split, because locks and queues do not accept arbitrarily long timeouts.
MAX_WAIT_SECONDS: Final = 86400.0


class Timers:
    """Deadlines of things, each due at most once, and the deadline of the run.

    Setting a deadline and reaching it cost O(log n) each.
    """

    __slots__ = ("_heap", "_latest", "_numbers", "deadline", "is_used")

    def __init__(self) -> None:
        #: The deadline of the run; `set_deadline` changes it.
        self.deadline = math.inf
        #: False if no deadline has been set since the creation or `clear`: nothing can be due.
        self.is_used = False
        self._numbers = itertools.count()
        # It also contains replaced deadlines, whose numbers are not in `_latest`.
        self._heap: list[tuple[float, int, Hashable]] = []
        self._latest: dict[Hashable, int] = {}

    def set(self, key: Hashable, due: float) -> None:
        self.is_used = True
        number = self._latest[key] = next(self._numbers)
        heapq.heappush(self._heap, (due, number, key))

    def pop(self, now: float) -> list[Any]:
        heap = self._heap
        due_keys = []
        while heap and heap[0][0] <= now:
            _, number, key = heapq.heappop(heap)
            if self._latest.get(key) == number:
                del self._latest[key]
                due_keys.append(key)
        return due_keys

    def set_deadline(self, deadline: float) -> None:
        """Set the deadline of the run."""
        self.deadline = deadline
        self.is_used = True

    def clear(self) -> None:
        """Remove all deadlines."""
        self.deadline = math.inf
        self._heap.clear()
        self._latest.clear()
        self.is_used = False

    def passed(self, now: float) -> bool:
        return now >= self.deadline or (bool(self._heap) and self._heap[0][0] <= now)

    def wait(self, now: float, max_seconds: float | None = None) -> float | None:
        """Return the seconds until something is due, at most `max_seconds`; None: no deadline."""
        due = min(self.deadline, self._heap[0][0] if self._heap else math.inf)
        if max_seconds is not None:
            due = min(due, now + max_seconds)
        return None if due == math.inf else min(max(due - now, 0.0), MAX_WAIT_SECONDS)
