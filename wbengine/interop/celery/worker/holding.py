"""Jobs whose time has not come, in the order in which it does."""

from __future__ import annotations

import heapq
import itertools

from wbengine.interop.celery.worker.jobs import Job, Key

__all__ = ["Timetable"]


class Timetable:
    """Keeps the jobs of `held`, each until it is `due`.  O(log n), whatever is removed early."""

    def __init__(self, held: dict[Key, Job]) -> None:
        self._held = held
        self._heap: list[tuple[float, int, Job]] = []
        self._numbers = itertools.count()

    def add(self, job: Job) -> None:
        """Hold it until `job.due`."""
        assert job.due is not None
        self._held[job.key] = job
        heapq.heappush(self._heap, (job.due, next(self._numbers), job))
        if len(self._heap) > 2 * len(self._held) + 64:  # most of it was removed since
            self._heap = [entry for entry in self._heap if self._is_held(entry[2])]
            heapq.heapify(self._heap)

    def remove(self, job: Job) -> None:
        """Hold it no more."""
        del self._held[job.key]

    def clear(self) -> None:
        """Hold nothing any more."""
        self._held.clear()
        self._heap.clear()

    def next(self) -> float | None:
        """When the first one is due, if there is one."""
        while self._heap and not self._is_held(self._heap[0][2]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[Job]:
        """Those that are due; they are held no more."""
        found: list[Job] = []
        while (first := self.next()) is not None and first <= now:
            job = heapq.heappop(self._heap)[2]
            self.remove(job)
            found.append(job)
        return found

    def _is_held(self, job: Job) -> bool:
        return self._held.get(job.key) is job
