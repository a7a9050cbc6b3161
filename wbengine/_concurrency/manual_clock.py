"""The clock of tests, with which waits take no time."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable
from typing import Any, Final

from wbengine._concurrency import clocks, conditions

__all__ = ["ManualClock"]

#: In the class, `queue` is a method.
_Queue = queue.SimpleQueue[Any]


class ManualClock(clocks.Clock):
    """A clock that stands still, except while all of its engines only wait.

    If engines with this clock wait for times, and none of them runs a task, the clock advances to
    the earliest of these times. `advance` advances it at any moment, from any thread.

    :param start: its time at the beginning, in Unix seconds.
    """

    __slots__ = ("__weakref__", "_attached", "_changed", "_lock", "_now", "_waits", "start")

    is_real = False

    def __init__(self, start: float = 0.0) -> None:
        # Reentrant, because a signal handler of a thread that waits may suspend its flow.
        self._lock = threading.RLock()
        self._changed = conditions.Condition(self._lock)
        #: Its time at the beginning.
        self.start: Final = start
        self._now = start
        self._attached: dict[_Queue, Callable[[], bool]] = {}
        # The queues in which threads wait, with the ends of the waits. A thread whose run is busy
        # does not wait for a time.
        self._waits: dict[_Queue, float] = {}

    def monotonic(self) -> float:
        return self._now

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Advance by `seconds`, which must not be negative."""
        if not seconds >= 0:
            raise ValueError(f"seconds must be 0 or more to advance a clock, got {seconds!r}")
        with self._lock:
            self._now += seconds
            self._changed.notify_all()

    def queue(self) -> _Queue:
        return _ManualQueue(self)

    def attach(self, events: _Queue, is_busy: Callable[[], bool]) -> None:
        with self._lock:
            self._attached[events] = is_busy

    def detach(self, events: _Queue) -> None:
        with self._lock:
            self._attached.pop(events, None)
            self._changed.notify_all()

    def wait(self, events: _Queue, seconds: float) -> None:
        """Wait until one of its queues contains an item, or `seconds` of this clock are over."""
        is_busy = self._attached.get(events, _never)()
        end = self._now + seconds

        def is_over() -> bool:
            if events.empty() and self._now < end and not is_busy:
                self._waits[events] = end
                self._advance_if_all_wait()
            return not events.empty() or self._now >= end

        try:
            self._changed.wait_for(is_over)
        finally:
            with self._lock:
                self._waits.pop(events, None)

    def notify(self, events: _Queue) -> None:
        """Continue the thread that waits in a queue, which now contains an item."""
        with self._lock:
            self._waits.pop(events, None)
            self._changed.notify_all()

    def _advance_if_all_wait(self) -> None:
        """Advance to the earliest end of the waits, unless a run is busy."""
        end = min(self._waits.values())
        if self._attached.keys() <= self._waits.keys() and self._now < end < math.inf:
            self._now = end
            self._changed.notify_all()


def _never() -> bool:
    return False


class _ManualQueue(queue.SimpleQueue):  # type: ignore[type-arg]
    """A queue whose `get` waits with its clock."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        super().put(item)
        self._clock.notify(self)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if block:
            self._clock.wait(self, math.inf if timeout is None else timeout)
        return super().get(block=False)
