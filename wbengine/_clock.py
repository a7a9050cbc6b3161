"""Clocks as parameters, so that tests can control time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any


class Clock:
    """The clock of this machine. Thread-safe."""

    __slots__ = ()

    #: Monotonic time in seconds, for durations and deadlines.
    monotonic: Callable[[], float] = staticmethod(time.monotonic)

    #: Unix time in seconds, for records that people or other hosts read. It may jump.
    time: Callable[[], float] = staticmethod(time.time)

    #: Create a queue whose `get` measures its timeout with this clock.
    queue: Callable[[], queue.SimpleQueue[Any]] = staticmethod(queue.SimpleQueue)


SYSTEM = Clock()


class ManualClock(Clock):
    """A clock that changes only when it is advanced.

    If a `get` with a timeout finds no item in one of its queues, it advances the clock by the
    timeout.
    """

    __slots__ = ("_lock", "_now")

    def __init__(self, start: float = 0.0) -> None:
        self._lock = threading.Lock()
        self._now = start

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

    def queue(self) -> queue.SimpleQueue[Any]:
        return _ManualQueue(self)


class _ManualQueue(queue.SimpleQueue):  # type: ignore[type-arg]
    """A queue whose `get` advances its clock instead of waiting."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not block or timeout is None:
            return super().get(block)
        try:
            return super().get(block=False)
        except queue.Empty:
            self._clock.advance(timeout)
            raise
