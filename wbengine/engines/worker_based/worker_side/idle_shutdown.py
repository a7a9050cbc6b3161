"""How long a worker waits for something to do before it ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

__all__ = ["BURST", "GAP", "IdleShutdown", "check", "wait_idle"]

#: Seconds that `burst` waits, with empty queues and idle slots, before it ends.
BURST: Final = 2.0

#: Seconds between two looks that mean that nothing could have come meanwhile: the broker was away,
#: or this process was stopped.
GAP: Final = 3.0

#: Seconds after which a wait for the end of what runs looks whether it may last so long.
_LOOK: Final = 0.25


class IdleShutdown:
    """Whether nothing was to be done for `most` seconds; None: it may be so for ever, or with
    `burst` for a moment.

    All times are those of one monotonic clock.  Not thread-safe.
    """

    def __init__(self, most: float | None, now: float, *, burst: bool = False) -> None:
        self.most = BURST if burst and most is None else most
        #: When something was to be done last; set from outside.
        self.since = now
        self._looked = now

    def is_over(self, now: float, busy: bool) -> bool:
        """A look, at least once a second; `busy`: something is being done, or may not be."""
        if busy or now - self._looked > GAP:
            self.since = now
        self._looked = now
        return self.most is not None and now - self.since >= self.most

    def idle(self, now: float) -> float:
        """Seconds since something was to be done."""
        return now - self.since


def check(max_tasks: int | None, max_idle_time: float | None, drain_timeout: float | None) -> None:
    """See that what limits the life of a worker makes sense.

    :raises ValueError: one does not; it says which.
    """
    if max_tasks is not None and (type(max_tasks) is not int or max_tasks < 1):
        raise ValueError(f"max_tasks must be a whole number of at least 1, not {max_tasks!r}")
    for name, value in (("max_idle_time", max_idle_time), ("drain_timeout", drain_timeout)):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and 0 <= value < math.inf):
            raise ValueError(f"{name} must be seconds, not {value!r}")


def wait_idle(
    idle: Callable[[float], bool], most: Callable[[], float | None], over: Callable[[], bool]
) -> bool:
    """Wait until `idle(until)`, which waits till then (on the monotonic clock) at most, says so.

    False: `most` seconds were too few (None: there are never too few), which may become fewer while
    it waits; or it is `over`.
    """
    since = time.monotonic()
    while True:
        limit = most()
        until = math.inf if limit is None else since + limit
        now = time.monotonic()
        if idle(min(until, now + _LOOK)):
            return True
        if over() or now >= until:
            return False
