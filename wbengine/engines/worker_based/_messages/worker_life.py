"""The state of a worker process, as its heartbeats report it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wbengine._text import json_text

#: The worker is starting and does not accept requests yet.
STARTED: Final = "started"
IDLE: Final = "idle"
BUSY: Final = "busy"
#: The worker accepts no new requests until it is resumed.
SUSPENDED: Final = "suspended"
#: The worker accepts no new requests, finishes its running tasks and then stops.
DRAINING: Final = "draining"
DEAD: Final = "dead"

STATES: Final = frozenset((STARTED, IDLE, BUSY, SUSPENDED, DRAINING, DEAD))

#: Maximum accepted value of a counter or time.
_MAX_NUMBER: Final = 2.0**53

#: Limits for received data: number of pairs in `current`, and length of each name.
_MAX_CURRENT: Final = 1000
_MAX_NAME_LENGTH: Final = 512

#: Maximum size of `current` in a header, in bytes. With their times and the ids of requests, the
#: headers of a heartbeat then fit into a frame of RabbitMQ (128 KiB).
_MAX_CURRENT_BYTES: Final = 48 * 1024


@dataclass(frozen=True, slots=True)
class Life:
    """The state and the counters of one worker process.

    Times are Unix time on the worker's clock. `working` is the total runtime of completed tasks
    in seconds. `current` contains `(request id, task name)` of the running tasks, `since` the
    start time of each (0.0: unknown).
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
        """Return the value of the header `wbe-life`: JSON, without fields that have defaults.

        It contains at most the first 1,000 tasks of `current`, and fewer if they exceed 48 KiB.
        """
        header: dict[str, Any] = {"state": self.state}
        for name in ("birth", "shutdown_requested", "death", "successes", "failures", "working"):
            value = getattr(self, name)
            if value:
                header[name] = value
        current = self.current[:_MAX_CURRENT]
        while len(json_text.encode(current, "replace")) > _MAX_CURRENT_BYTES:
            current = current[: len(current) * 3 // 4]
        if current:
            header["current"] = [list(pair) for pair in current]
        if any(self.since):
            header["since"] = [round(moment, 1) for moment in self.since[: len(current)]]
        return header

    @classmethod
    def from_header(cls, data: Any) -> Life | None:
        """Read a received header; return None if it has no valid state.

        Other invalid fields get their defaults.
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
            tuple(_seconds(moment) or 0.0 for moment in _items(data.get("since"))),
        )


@dataclass(slots=True, eq=False)
class WorkerStats:
    """The counters of a worker process; times are Unix time. The caller must hold a lock."""

    birth: float | None = None
    shutdown_requested: float | None = None
    death: float | None = None
    #: Whether the worker has ever accepted requests.
    serving: bool = False
    suspended: bool = False
    #: Whether the worker accepts new requests now.
    accepts: bool = True
    successes: int = 0
    failures: int = 0
    working: float = 0.0

    @property
    def ending(self) -> bool:
        """Whether a shutdown was requested or the worker has stopped."""
        return self.shutdown_requested is not None or self.death is not None

    def suspend(self) -> None:
        self.suspended = True
        self.accepts = False

    def resume(self) -> None:
        """Resume, unless a shutdown was requested."""
        self.suspended = False
        self.accepts = not self.ending

    def end(self, now: float, *, dead: bool = False) -> None:
        """Record that a shutdown was requested, or, if `dead`, that the worker has stopped."""
        self.accepts = False
        self.shutdown_requested = self.shutdown_requested or now
        if dead:
            self.death = now

    def life(self, current: Iterable[tuple[str, str]], since: Iterable[float] = ()) -> Life:
        """Return the current state.

        :param current: `(request id, task name)` of the running tasks.
        :param since: start time of each of them.
        """
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
    """Return a number of seconds, or None if it is invalid or too large for a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= _MAX_NUMBER and math.isfinite(value) else None


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value <= _MAX_NUMBER else 0


def _items(value: Any) -> Sequence[Any]:
    return value[:_MAX_CURRENT] if isinstance(value, list | tuple) else ()


def _pairs(value: Any) -> Iterable[tuple[str, str]]:
    for pair in _items(value):
        match pair:
            case [str(id), str(name)] if max(len(id), len(name)) <= _MAX_NAME_LENGTH:
                yield id, name
