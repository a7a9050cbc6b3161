"""Clocks as parameters, so that tests can control time."""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

#: Seconds that pass on this host, also while it sleeps: the clock of a store does not stop then.
uptime: Callable[[], float] = (
    functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)


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


class StoreClock(Clock):
    """The clock of this machine, with the time of a store that has a clock of its own.

    Stored deadlines are times of this clock, so they do not depend on the clocks of hosts.
    """

    __slots__ = ("time",)

    #: Difference up to which this host has the time of the store. Then stored times of the engine
    #: are in order with those of its tasks, which use the clock of the host.
    TOLERANCE_SECONDS = 0.1

    def __init__(self) -> None:
        self.follow(None)

    def follow(self, ahead: float | None) -> None:
        """Follow the clock of a store.

        :param ahead: difference from `uptime` to the store's clock; None: the store uses the clock
            of this machine.
        """
        if ahead is None:
            self.time = time.time
            return
        own = time.time() - uptime()
        difference = own if abs(ahead - own) < self.TOLERANCE_SECONDS else ahead
        self.time = lambda: uptime() + difference


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
