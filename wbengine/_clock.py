"""Time as a parameter: code that waits or measures asks a clock, tests turn its hands."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any


class Clock:
    """The clock of this machine.  All methods may be called from any thread."""

    __slots__ = ()

    #: Seconds since some fixed moment; never goes back.  For durations and deadlines.
    monotonic: Callable[[], float] = staticmethod(time.monotonic)

    #: Unix seconds; may jump.  For records that people or other hosts read.
    time: Callable[[], float] = staticmethod(time.time)

    #: Make a queue whose `get` waits on this clock.
    queue: Callable[[], queue.SimpleQueue[Any]] = staticmethod(queue.SimpleQueue)


#: The clock that everything uses unless it is given another.
SYSTEM = Clock()


class ManualClock(Clock):
    """A clock that stands still until it is told to advance.

    Waiting for a queue of its own advances it: whoever waits so finds an item, or the time gone.
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
        """Move on by `seconds`, which may be zero but not negative."""
        if not seconds >= 0:
            raise ValueError(f"a clock cannot advance by {seconds!r} seconds")
        with self._lock:
            self._now += seconds

    def queue(self) -> queue.SimpleQueue[Any]:
        return _Skipping(self)


class _Skipping(queue.SimpleQueue):  # type: ignore[type-arg]
    """A queue whose waits cost no time but that of its clock."""

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
