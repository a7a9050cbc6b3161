"""What is to happen at a time rather than in consequence of something.

Pure: the time is an argument, seconds of a clock that never goes back.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Hashable
from typing import Any, Final

__all__ = ["LONGEST", "Timers"]

#: Longer waits are made of several: neither a lock nor a queue waits for ever and a day.
LONGEST: Final = 86400.0


class Timers:
    """When things are due, each at most once, and when the whole run is.

    One costs O(log n) when it is set and when it comes due, and nothing while it waits.
    """

    __slots__ = ("_heap", "_latest", "_numbers", "deadline")

    def __init__(self, deadline: float = math.inf) -> None:
        #: When the time of the whole run is up.
        self.deadline = deadline
        self._numbers = itertools.count()
        # Holds also what was set anew since; `_latest` tells.
        self._heap: list[tuple[float, int, Hashable]] = []
        self._latest: dict[Hashable, int] = {}

    def set(self, thing: Hashable, due: float) -> None:
        """Let `thing` come due at `due`, whatever was said of it before."""
        number = self._latest[thing] = next(self._numbers)
        heapq.heappush(self._heap, (due, number, thing))

    def pop(self, now: float) -> list[Any]:
        """Take out what is due, the earliest first."""
        heap = self._heap
        found = []
        while heap and heap[0][0] <= now:
            _, number, thing = heapq.heappop(heap)
            if self._latest.get(thing) == number:
                del self._latest[thing]
                found.append(thing)
        return found

    def passed(self, now: float) -> bool:
        """Whether something is due, or the whole run."""
        return now >= self.deadline or (bool(self._heap) and self._heap[0][0] <= now)

    def wait(self, now: float, most: float | None = None) -> float | None:
        """How many seconds may pass until something is due; at most `most`.  None: any number."""
        due = min(self.deadline, self._heap[0][0] if self._heap else math.inf)
        if most is not None:
            due = min(due, now + most)
        return None if due == math.inf else min(max(due - now, 0.0), LONGEST)
