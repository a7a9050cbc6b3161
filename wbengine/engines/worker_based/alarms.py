"""When to look at which request again."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from typing import Final

from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.entries import Entry

EXPIRE: Final = "expire"
WARN: Final = "warn"

#: Outdated alarms that are kept before those are looked for that still mean something.
_STALE: Final = 1000


class Alarms:
    """A heap of times.  An alarm means something only as long as its request has not started."""

    __slots__ = ("_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str, Entry]] = []
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, at: float, kind: str, entry: Entry) -> None:
        heapq.heappush(self._heap, (at, next(self._order), kind, entry))

    def next(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> Iterator[tuple[str, Entry]]:
        """What is due, including what is set to a past time meanwhile; O(log n) each."""
        while self._heap and self._heap[0][0] <= now:
            _, _, kind, entry = heapq.heappop(self._heap)
            if _means(entry):
                yield kind, entry

    def tidy(self, entries: int) -> None:
        """Let go of what has ended; there are `entries` requests.  O(1) amortised."""
        if not entries:
            self._heap.clear()
        elif len(self._heap) > 2 * entries + _STALE:
            self._heap = [alarm for alarm in self._heap if _means(alarm[3])]
            heapq.heapify(self._heap)


def _means(entry: Entry) -> bool:
    return entry.live and entry.state in pr.WAITING_STATES
