"""Time as a parameter: code that waits or measures asks a clock, tests turn its hands."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Clock:
    """The clock of this machine.  All methods may be called from any thread."""

    __slots__ = ()

    #: Seconds since some fixed moment; never goes back.  For durations and deadlines.
    monotonic: Callable[[], float] = staticmethod(time.monotonic)

    #: Unix seconds; may jump.  For records that people or other hosts read.
    time: Callable[[], float] = staticmethod(time.time)


#: The clock that everything uses unless it is given another.
SYSTEM = Clock()


class ManualClock(Clock):
    """A clock that stands still until it is told to advance."""

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
