"""Keeps the leases of all engines of this process, until they are given back or lost.

One thread waits for the next one to be due; it starts when a flow is run, and ends when none has
been for a while.  A store that does not answer holds up only the leases that are kept there: while
one is being asked, another thread goes on waiting.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from wbengine import exceptions
from wbengine._crash import crashpoint
from wbengine.persistence import base, leases

__all__ = ["Keeper", "Tenure", "of_process"]

LOG: Final = logging.getLogger(__name__)

#: Seconds the thread waits for another flow to be run.
LINGER: Final = 2.0

#: The longest wait at a time: none is for ever and a day.
_LONGEST: Final = 3600.0

#: So many times a lease is renewed within its time.
_RENEWALS: Final = 3

# It goes on while the host sleeps, and so does that of the store.
now: Callable[[], float] = (
    (lambda: time.clock_gettime(time.CLOCK_BOOTTIME))
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)


def nobody() -> None:
    """Nobody is told."""


class Tenure:
    """One engine's hold on its flow: as long as `check` passes, nobody else runs it.

    `lost` is called, once and from any thread, when it is known that somebody else may.
    """

    def __init__(
        self,
        backend: base.Backend,
        lease: leases.Lease,
        seconds: float,
        taken: float,
        clock: Callable[[], float] = now,
    ) -> None:
        self.backend = backend
        self.lease = lease
        self.lost: Callable[[], None] = nobody
        #: Why it is lost.
        self.error: exceptions.LeaseLost | None = None
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        #: When it ends unless it is renewed, and when that is to be tried.
        self.until = taken + seconds
        self.due = taken + seconds / _RENEWALS

    def check(self) -> None:
        """Make sure that the flow is ours: nothing may be started otherwise.

        Costs nothing as long as its time is not over; then the store is asked.

        :raises LeaseLost: it is not, or the store does not say so.
        """
        over = self.error is None and self._clock() >= self.until
        if over and not self.renew():
            self._lose("it could not be renewed in time")
        if self.error is not None:
            raise self.error

    def renew(self) -> bool:
        """Renew it, or find out that it is lost; a store that fails is asked again later.

        Returns whether it is ours for another while.
        """
        asked = self._clock()
        try:
            with contextlib.closing(self.backend.get_connection()) as connection:
                crashpoint("lease.before-renew")
                connection.renew_lease(self.lease, self._seconds)
        except exceptions.LeaseLost as error:
            self._lose(str(error))
        except Exception as error:
            LOG.warning("The lease of flow %s could not be renewed: %s", self.lease.flow, error)
            self.due = self._clock() + min(1.0, self._seconds / (4 * _RENEWALS))
        else:
            self.until = max(self.until, asked + self._seconds)
            self.due = asked + max(self._seconds / _RENEWALS, 0.05)
            return True
        return False

    def lose(self, error: exceptions.LeaseLost) -> None:
        """A write was refused."""
        self._lose(str(error))

    def _lose(self, why: str) -> None:
        with self._lock:
            if self.error is not None:
                return
            self.error = exceptions.LeaseLost(why)
        self.lost()


class Keeper:
    """Renews the tenures it is given."""

    def __init__(self, clock: Callable[[], float] = now) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._kept: dict[Tenure, None] = {}
        # The stores that are being asked now.
        self._asked: set[base.Backend] = set()
        # Who waits for the next one to be due, and until when.
        self._watching = False
        self._until = 0.0

    def keep(self, tenure: Tenure) -> None:
        """Renew `tenure` from now on."""
        with self._changed:
            self._kept[tenure] = None
            if not self._watching:
                self._watch()
            elif tenure.due < self._until:
                self._changed.notify()

    def drop(self, tenure: Tenure) -> None:
        """Renew it no more; it may be being renewed right now."""
        with self._changed:
            self._kept.pop(tenure, None)

    def _watch(self) -> None:
        thread = threading.Thread(target=self._main, name="wbengine-leases", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # Whoever starts something renews the lease then, if its time is over.
            LOG.warning("No thread keeps the leases of this process: %s", error)
        else:
            self._watching = True

    def _main(self) -> None:
        while True:
            with self._changed:
                found = self._wait()
                if not found:
                    self._watching = False
                    return
                backend = found[0].backend
                self._asked.add(backend)
                # Whoever is due elsewhere must not wait for the answer.
                self._watching = False
                if any(tenure.backend is not backend for tenure in self._kept):
                    self._watch()
            self._renew(found)
            with self._changed:
                self._asked.discard(backend)
                if self._watching:
                    self._changed.notify()
                    return
                self._watching = True

    def _wait(self) -> list[Tenure]:
        """Those of one store that are due; none: there has been nothing to do for long."""
        lingering = self._clock() + LINGER
        while True:
            now = self._clock()
            waiting = [tenure for tenure in self._kept if tenure.backend not in self._asked]
            first = min(waiting, key=_due, default=None)
            if first is not None and first.due <= now:
                return [
                    each for each in waiting if each.backend is first.backend and each.due <= now
                ]
            if self._kept:
                lingering = now + LINGER
            elif now >= lingering:
                return []
            self._until = lingering if first is None else first.due
            self._changed.wait(min(self._until - now, _LONGEST))

    def _renew(self, tenures: Iterable[Tenure]) -> None:
        for tenure in tenures:
            if tenure not in self._kept:
                continue
            if tenure.error is None:
                tenure.renew()
            if tenure.error is not None:
                self.drop(tenure)


def _due(tenure: Tenure) -> float:
    return tenure.due


_keeper = Keeper()


def of_process() -> Keeper:
    """The keeper of all engines of this process."""
    return _keeper


def _forked() -> None:
    global _keeper
    _keeper = Keeper()  # no thread, and no lease, of the parent's is ours


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
