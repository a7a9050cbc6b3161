"""Keeps the leases of all engines of this process, until they are given back or lost; and looks
what others want of their flows.

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
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

from wbengine import exceptions
from wbengine._crash import crashpoint
from wbengine.persistence import base, leases

__all__ = ["Keeper", "Tenure", "of_process"]

LOG: Final = logging.getLogger(__name__)

#: Seconds the thread waits for another flow to be run.
LINGER: Final = 2.0

#: The longest wait at a time: none is for ever and a day.
_LONGEST: Final = 3600.0

#: Seconds between two looks at what others want.
LOOK: Final = 1.0

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
        #: Does what somebody wants of the run, in a thread of its own; None: it cannot do so now.
        self.wished: Callable[[base.Wish], object] | None = None
        #: Has written, soon, what was told without a word; called each second while it runs.
        self.stir: Callable[[], None] = nobody
        # What is being done, or was.
        self._granted: base.Wish | None = None
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

    def hear(self, wish: base.Wish) -> None:
        """Somebody wants something: do it, if it is of this run and news, and then forget it."""
        do = self.wished
        if do is None or wish == self._granted or wish.epoch != self.lease.epoch:
            return
        self._granted = wish

        def grant() -> None:
            try:
                do(wish)
                with contextlib.closing(self.backend.get_connection()) as connection:
                    connection.clear_wish(self.lease, wish)
            except Exception as error:
                LOG.warning("Flow %s was to be %s: %s", self.lease.flow, wish.in_words(), error)

        # Whoever is told of it may take his time.
        threading.Thread(target=grant, name="wbengine-wish", daemon=True).start()

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
        # When to look the next time what is wanted, by store.
        self._looks: dict[base.Backend, float] = {}
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
            if all(each.backend is not tenure.backend for each in self._kept):
                self._looks.pop(tenure.backend, None)

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
                errand = self._wait()
                if errand is None:
                    self._watching = False
                    return
                backend = errand.backend
                self._asked.add(backend)
                # Whoever is due elsewhere must not wait for the answer.
                self._watching = False
                if any(tenure.backend is not backend for tenure in self._kept):
                    self._watch()
            self._renew(errand.due)
            self._look(backend, errand.heard)
            with self._changed:
                self._asked.discard(backend)
                if self._watching:
                    self._changed.notify()
                    return
                self._watching = True

    def _wait(self) -> _Errand | None:
        """What is due at one store; None: there has been nothing to do for long."""
        lingering = self._clock() + LINGER
        while True:
            now = self._clock()
            waiting = [tenure for tenure in self._kept if tenure.backend not in self._asked]
            found = self._due(waiting, now)
            if found is not None:
                return found
            if self._kept:
                lingering = now + LINGER
            elif now >= lingering:
                return None
            moments = [tenure.due for tenure in waiting]
            moments += [self._looks[tenure.backend] for tenure in waiting]
            self._until = min(moments, default=lingering)
            self._changed.wait(min(self._until - now, _LONGEST))

    def _due(self, waiting: Collection[Tenure], now: float) -> _Errand | None:
        for tenure in waiting:
            self._looks.setdefault(tenure.backend, now + LOOK)
        first = min(
            waiting, key=lambda each: min(each.due, self._looks[each.backend]), default=None
        )
        if first is None:
            return None
        mine = [each for each in waiting if each.backend is first.backend]
        due = [each for each in mine if each.due <= now]
        looks = self._looks[first.backend] <= now
        if looks:
            self._looks[first.backend] = now + LOOK
        heard = [each for each in mine if each.wished is not None] if looks else []
        return _Errand(first.backend, due, heard) if due or looks else None

    def _renew(self, tenures: Iterable[Tenure]) -> None:
        for tenure in tenures:
            if tenure not in self._kept:
                continue
            if tenure.error is None:
                tenure.renew()
            if tenure.error is not None:
                self.drop(tenure)

    def _look(self, backend: base.Backend, tenures: Collection[Tenure]) -> None:
        """See what others want of these flows: one read for all of them."""
        if not tenures:
            return
        found: Mapping[str, base.Wish] = {}
        try:
            with contextlib.closing(backend.get_connection()) as connection:
                found = connection.wishes([tenure.lease.flow for tenure in tenures])
        except Exception as error:  # the next look may be luckier
            LOG.debug("Nobody knows what is wanted of %d flows: %s", len(tenures), error)
        for tenure in tenures:
            tenure.stir()
            wish = found.get(tenure.lease.flow)
            if wish is not None:
                tenure.hear(wish)


class _Errand(NamedTuple):
    """What is to be done at one store: leases to renew, flows that may be wished for something."""

    backend: base.Backend
    due: Collection[Tenure]
    heard: Collection[Tenure]


_keeper = Keeper()


def of_process() -> Keeper:
    """The keeper of all engines of this process."""
    return _keeper


def _forked() -> None:
    global _keeper
    _keeper = Keeper()  # no thread, and no lease, of the parent's is ours


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
