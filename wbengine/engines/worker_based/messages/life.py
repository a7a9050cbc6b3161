"""The life of a worker process, as it tells of it in its beats."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = [
    "BUSY",
    "DEAD",
    "DRAINING",
    "IDLE",
    "STARTED",
    "STATES",
    "SUSPENDED",
    "WorkerStats",
    "Life",
]

#: It was born, and does not take requests yet.
STARTED: Final = "started"
IDLE: Final = "idle"
BUSY: Final = "busy"
#: It takes nothing new until it is told to resume.
SUSPENDED: Final = "suspended"
#: It takes nothing new, finishes what runs, and then ends.
DRAINING: Final = "draining"
DEAD: Final = "dead"

STATES: Final = frozenset((STARTED, IDLE, BUSY, SUSPENDED, DRAINING, DEAD))

#: Nothing that a worker counts is larger; no moment in unix seconds is either.
_MOST: Final = 2.0**53

#: So much of what a worker says of itself is read: pairs in `current`, characters of each name.
_MOST_CURRENT: Final = 1000
_LONGEST: Final = 512


@dataclass(frozen=True, slots=True)
class Life:
    """What is known of one worker process.

    Moments are unix seconds on the worker's clock, `working` is seconds: the sum of the runtimes of
    all tasks that ended.  `current` holds `(request id, task name)` of what runs, `since` when each
    of these was begun (0.0: that is not known).
    """

    state: str = STARTED
    birth: float | None = None
    shutdown_requested: float | None = None
    death: float | None = None
    successes: int = 0
    failures: int = 0
    working: float = 0.0
    current: tuple[tuple[str, str], ...] = ()
    since: tuple[float, ...] = ()

    def to_header(self) -> dict[str, Any]:
        """What travels in the header `wbe-life`: plain JSON, without what is as by default."""
        found: dict[str, Any] = {"state": self.state}
        for name in ("birth", "shutdown_requested", "death", "successes", "failures", "working"):
            value = getattr(self, name)
            if value:
                found[name] = value
        if self.current:
            found["current"] = [list(pair) for pair in self.current]
        if any(self.since):
            found["since"] = [round(moment, 1) for moment in self.since]
        return found

    @classmethod
    def from_header(cls, data: Any) -> Life | None:
        """Read what somebody sent; None when it is not that.

        A field that cannot be read is as by default, whatever came in it, and hurts no other.
        """
        state = data.get("state") if isinstance(data, Mapping) else None
        if not isinstance(state, str) or state not in STATES:
            return None
        return cls(
            state,
            _seconds(data.get("birth")),
            _seconds(data.get("shutdown_requested")),
            _seconds(data.get("death")),
            _count(data.get("successes")),
            _count(data.get("failures")),
            _seconds(data.get("working")) or 0.0,
            tuple(_pairs(data.get("current"))),
            tuple(_moments(data.get("since"))),
        )


@dataclass(slots=True, eq=False)
class WorkerStats:
    """What a worker keeps count of during its life.  Its owner holds a lock around every call.

    `birth` is in unix seconds, like every moment that is passed in.
    """

    birth: float | None = None
    shutdown_requested: float | None = None
    death: float | None = None
    #: Whether it takes requests, or did so before it was told not to.
    serving: bool = False
    suspended: bool = False
    #: Whether it takes what comes.
    takes: bool = True
    successes: int = 0
    failures: int = 0
    working: float = 0.0

    @property
    def ending(self) -> bool:
        """Whether it was told to end, or did."""
        return self.shutdown_requested is not None or self.death is not None

    def suspend(self) -> None:
        self.suspended = True
        self.takes = False

    def resume(self) -> None:
        """Unless it was told to end."""
        self.suspended = False
        self.takes = not self.ending

    def end(self, now: float, *, dead: bool = False) -> None:
        """It was told to end; or `dead`: it did."""
        self.takes = False
        self.shutdown_requested = self.shutdown_requested or now
        if dead:
            self.death = now

    def life(self, current: Iterable[tuple[str, str]], since: Iterable[float] = ()) -> Life:
        """All of it, with `(request id, task name)` of what runs, and when that was begun."""
        pairs = tuple(current)
        return Life(
            self._state(bool(pairs)),
            self.birth,
            self.shutdown_requested,
            self.death,
            self.successes,
            self.failures,
            self.working,
            pairs,
            tuple(since),
        )

    def _state(self, busy: bool) -> str:
        if self.death is not None:
            return DEAD
        if self.shutdown_requested is not None:
            return DRAINING
        if self.suspended:
            return SUSPENDED
        if busy:
            return BUSY
        return IDLE if self.serving else STARTED


def _seconds(value: Any) -> float | None:
    """A number of seconds, or None; one that is an enormous int would not even become a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= _MOST and math.isfinite(value) else None


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value <= _MOST else 0


def _pairs(value: Any) -> Iterable[tuple[str, str]]:
    if not isinstance(value, list | tuple):
        return
    for pair in value[:_MOST_CURRENT]:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            continue
        if all(isinstance(part, str) and len(part) <= _LONGEST for part in pair):
            yield pair[0], pair[1]


def _moments(value: Any) -> Iterable[float]:
    if isinstance(value, list | tuple):
        for moment in value[:_MOST_CURRENT]:
            yield _seconds(moment) or 0.0
