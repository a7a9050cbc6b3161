"""A latch that waits for a number of events."""

from __future__ import annotations

import threading

from wbengine._concurrency import conditions


class Latch:
    """A latch that opens after `count` calls of `countdown`, and stays open. Thread-safe."""

    __slots__ = ("_condition", "_count", "_lock")

    def __init__(self, count: int) -> None:
        """Create a latch.

        :raises ValueError: if `count` is not greater than zero.
        """
        count = int(count)
        if count <= 0:
            raise ValueError(f"The count of a latch must be greater than zero, got {count}")
        self._count = count
        self._lock = threading.Lock()
        self._condition = conditions.Condition(self._lock)

    @property
    def needed(self) -> int:
        """The number of calls of `countdown` that remain until the latch opens."""
        return max(0, self._count)

    def countdown(self) -> None:
        """Count one event. Additional calls have no effect."""
        with self._lock:
            self._count -= 1
            if self._count <= 0:
                self._condition.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds (None: forever). Return True if the latch is open."""
        return self._condition.wait_for(lambda: self._count <= 0, timeout)
