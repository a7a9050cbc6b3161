"""Clocks as parameters, so that tests can control time."""

from __future__ import annotations

import functools
import queue
import time
from collections.abc import Callable
from typing import Any, ClassVar

#: Seconds that pass on this host, also while it sleeps: the clock of a store does not stop then.
uptime: Callable[[], float] = (
    functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)

#: In the classes, `queue` is a method.
_Queue = queue.SimpleQueue[Any]


class Clock:
    """The clock of this machine. Thread-safe."""

    __slots__ = ()

    #: Whether its seconds are those of other hosts and processes.
    is_real: ClassVar[bool] = True

    #: Monotonic time in seconds, for durations and deadlines.
    monotonic: Callable[[], float] = staticmethod(time.monotonic)

    #: Unix time in seconds, for records that people or other hosts read. It may jump.
    time: Callable[[], float] = staticmethod(time.time)

    #: Create a queue whose `get` measures its timeout with this clock.
    queue: Callable[[], _Queue] = staticmethod(queue.SimpleQueue)

    def attach(self, events: _Queue, is_busy: Callable[[], bool]) -> None:
        """Begin a run, whose thread waits in `events`. That thread calls `is_busy`.

        :param is_busy: returns whether something runs that then puts an item into the queue.
        """

    def detach(self, events: _Queue) -> None:
        """End a run. Idempotent."""

    def follow(self, ahead: float | None) -> None:
        """Follow the clock of a store, if this clock can. See `StoreClock`."""


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
