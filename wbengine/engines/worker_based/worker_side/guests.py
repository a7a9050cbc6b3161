"""Guests of a worker: whatever brings it tasks in another way than its topics.

They share its pool, and its life: what limits a worker, suspends it or ends it counts them in.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from wbengine.engines.worker_based.worker_side import reporting
from wbengine.engines.worker_based.worker_side.slots import Pool

if TYPE_CHECKING:
    from wbengine.concurrency import event_loop

__all__ = ["Guest", "Guests", "Host"]

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Host:
    """What a worker lends its guests."""

    identity: str
    pool: Pool
    #: Where async bodies run; None: in loops of the pool's own processes.
    loop: event_loop.EventLoop | None
    slots: int
    #: Called once for each task that is about to begin; False: no more may.
    admit: Callable[[], bool]
    #: Ends the worker, as its `stop` does.
    stop: Callable[[], None]
    #: Has the process of the worker say, by its exit code, that it did not end as asked.
    fail: Callable[[], None]
    #: Tells people how tasks end.
    reports: reporting.Reports


class Guest(Protocol):
    """What a worker asks of a guest; from any thread.

    `attach` is called first, and once.  `start` connects, and raises what keeps it from that:
    afterwards a broker that is away is no reason to end.
    """

    def attach(self, host: Host) -> None: ...

    def start(self) -> None:
        """
        :raises TransportFailure: its broker cannot be reached.
        """

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait until it takes tasks; False if time ran out."""

    def suspend(self) -> None:
        """Take nothing new until `resume`; what did not begin goes back.  Idempotent."""

    def resume(self) -> None:
        """Take what comes again."""

    def drain(self) -> None:
        """Take nothing new any more; what did not begin goes back.  Idempotent."""

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait until nothing is under way any more; False if time ran out."""

    def give_up(self) -> None:
        """Cancel what runs; nothing is told any more of what becomes of it.  Idempotent."""

    def close(self, timeout: float = 5.0) -> None:
        """Tell what is left to be told, and disconnect.  Idempotent."""

    @property
    def description(self) -> Sequence[tuple[str, str]]:
        """What the banner says of it: short names, and what they are."""

    @property
    def busy(self) -> bool:
        """Whether anything runs, waits, or is not settled yet."""

    @property
    def running(self) -> int:
        """How many tasks run."""

    @property
    def current(self) -> Sequence[tuple[str, str, float]]:
        """What runs: ids, names, and when each was begun (unix seconds).  Waits for no lock."""

    @property
    def taken(self) -> float:
        """When its last task came, on the monotonic clock."""


#: Seconds that a guest has to tell what is left when the worker ends.
_LAST: Final = 5.0


class Guests:
    """All guests of one worker, as one."""

    def __init__(self, guests: Iterable[Guest]) -> None:
        self._all = tuple(guests)

    def attach(self, host: Host) -> None:
        for guest in self._all:
            guest.attach(host)

    def __len__(self) -> int:
        return len(self._all)

    def start(self) -> None:
        """
        :raises TransportFailure: the broker of one cannot be reached.
        """
        for guest in self._all:
            guest.start()

    def wait_ready(self, timeout: float | None) -> bool:
        until = math.inf if timeout is None else time.monotonic() + timeout
        return all(guest.wait_ready(_left(until)) for guest in self._all)

    def suspend(self) -> None:
        for guest in self._all:
            guest.suspend()

    def resume(self) -> None:
        for guest in self._all:
            guest.resume()

    def drain(self) -> None:
        for guest in self._all:
            guest.drain()

    def wait_idle(self, until: float = math.inf) -> bool:
        """`until` a moment on the monotonic clock."""
        return all(guest.wait_idle(_left(until)) for guest in self._all)

    def give_up(self) -> None:
        for guest in self._all:
            guest.give_up()

    def close(self, timeout: float = _LAST) -> None:
        """Whatever becomes of one, the others are closed."""
        for guest in self._all:
            try:
                guest.close(timeout)
            except Exception:
                LOG.exception("%s cannot be closed", guest)

    @property
    def description(self) -> list[tuple[str, str]]:
        return [line for guest in self._all for line in guest.description]

    @property
    def busy(self) -> bool:
        return any(guest.busy for guest in self._all)

    @property
    def running(self) -> int:
        return sum(guest.running for guest in self._all)

    @property
    def current(self) -> list[tuple[str, str, float]]:
        return [each for guest in self._all for each in guest.current]

    @property
    def taken(self) -> float:
        return max((guest.taken for guest in self._all), default=-math.inf)


def _left(until: float) -> float | None:
    return None if until == math.inf else max(0.0, until - time.monotonic())
