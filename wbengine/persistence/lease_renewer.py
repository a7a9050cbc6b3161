"""Renews the leases of all engines of this process, until they are given back or lost; and looks
for the commands that others left for their flows.

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

__all__ = ["HeldLease", "LeaseRenewer", "of_process"]

LOG: Final = logging.getLogger(__name__)

#: Seconds the thread waits for another flow to be run.
LINGER: Final = 2.0

#: The longest wait at a time: none is for ever and a day.
_LONGEST: Final = 3600.0

#: Seconds between two looks for commands.
LOOK: Final = 1.0

#: So many times a lease is renewed within its time.
_RENEWALS: Final = 3

# It goes on while the host sleeps, and so does that of the store.
now: Callable[[], float] = (
    (lambda: time.clock_gettime(time.CLOCK_BOOTTIME))
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)


def ignore() -> None:
    """What is called where nothing is to be done."""


class HeldLease:
    """A lease that one engine holds: as long as `check` passes, no other engine runs the flow.

    `on_lost` is called, once and from any thread, when it is known that another may.
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
        self.on_lost: Callable[[], None] = ignore
        #: Obeys a command about the run, in a thread of its own; None: it cannot do so now.
        self.on_command: Callable[[base.FlowCommand], object] | None = None
        #: Called each second while the flow runs.
        self.on_tick: Callable[[], None] = ignore
        # The command that is being obeyed, or was.
        self._obeyed: base.FlowCommand | None = None
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

    def obey(self, command: base.FlowCommand) -> None:
        """Do what is commanded, if it is about this run and news, and then clear it."""
        do = self.on_command
        if do is None or command == self._obeyed or command.epoch != self.lease.epoch:
            return
        self._obeyed = command

        def work() -> None:
            try:
                do(command)
                with contextlib.closing(self.backend.get_connection()) as connection:
                    connection.clear_command(self.lease, command)
            except Exception as error:
                words = command.in_words()
                LOG.warning("Flow %s was to be %s: %s", self.lease.flow, words, error)

        # It may take its time, and leases have to be renewed meanwhile.
        threading.Thread(target=work, name="wbengine-command", daemon=True).start()

    def lose(self, error: exceptions.LeaseLost) -> None:
        """A write was refused."""
        self._lose(str(error))

    def _lose(self, why: str) -> None:
        with self._lock:
            if self.error is not None:
                return
            self.error = exceptions.LeaseLost(why)
        self.on_lost()


class LeaseRenewer:
    """Renews the leases it is given."""

    def __init__(self, clock: Callable[[], float] = now) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._held: dict[HeldLease, None] = {}
        # The stores that are being asked now.
        self._asked: set[base.Backend] = set()
        # When to look for commands the next time, by store.
        self._looks: dict[base.Backend, float] = {}
        # Whether a thread waits for the next one to be due, and until when.
        self._watching = False
        self._until = 0.0

    def add(self, held: HeldLease) -> None:
        """Renew it from now on."""
        with self._changed:
            self._held[held] = None
            if not self._watching:
                self._watch()
            elif held.due < self._until:
                self._changed.notify()

    def remove(self, held: HeldLease) -> None:
        """Renew it no more; it may be being renewed right now."""
        with self._changed:
            self._held.pop(held, None)
            if all(each.backend is not held.backend for each in self._held):
                self._looks.pop(held.backend, None)

    def _watch(self) -> None:
        thread = threading.Thread(target=self._main, name="wbengine-leases", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # `check` renews the lease then, if its time is over.
            LOG.warning("No thread keeps the leases of this process: %s", error)
        else:
            self._watching = True

    def _main(self) -> None:
        while True:
            with self._changed:
                turn = self._wait()
                if turn is None:
                    self._watching = False
                    return
                backend = turn.backend
                self._asked.add(backend)
                # Leases in other stores must not wait for the answer.
                self._watching = False
                if any(held.backend is not backend for held in self._held):
                    self._watch()
            self._renew(turn.due)
            self._look(backend, turn.hearing)
            with self._changed:
                self._asked.discard(backend)
                if self._watching:
                    self._changed.notify()
                    return
                self._watching = True

    def _wait(self) -> _Turn | None:
        """What is due at one store; None: there has been nothing to do for long."""
        lingering = self._clock() + LINGER
        while True:
            now = self._clock()
            waiting = [held for held in self._held if held.backend not in self._asked]
            found = self._due(waiting, now)
            if found is not None:
                return found
            if self._held:
                lingering = now + LINGER
            elif now >= lingering:
                return None
            moments = [held.due for held in waiting]
            moments += [self._looks[held.backend] for held in waiting]
            self._until = min(moments, default=lingering)
            self._changed.wait(min(self._until - now, _LONGEST))

    def _due(self, waiting: Collection[HeldLease], now: float) -> _Turn | None:
        for held in waiting:
            self._looks.setdefault(held.backend, now + LOOK)
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
        hearing = [each for each in mine if each.on_command is not None] if looks else []
        return _Turn(first.backend, due, hearing) if due or looks else None

    def _renew(self, held_leases: Iterable[HeldLease]) -> None:
        for held in held_leases:
            if held not in self._held:
                continue
            if held.error is None:
                held.renew()
            if held.error is not None:
                self.remove(held)

    def _look(self, backend: base.Backend, held_leases: Collection[HeldLease]) -> None:
        """Obey the commands about these flows: one read for all of them."""
        if not held_leases:
            return
        found: Mapping[str, base.FlowCommand] = {}
        try:
            with contextlib.closing(backend.get_connection()) as connection:
                found = connection.commands([held.lease.flow for held in held_leases])
        except Exception as error:  # the next look may succeed
            LOG.debug("Commands about %d flows could not be read: %s", len(held_leases), error)
        for held in held_leases:
            held.on_tick()
            command = found.get(held.lease.flow)
            if command is not None:
                held.obey(command)


class _Turn(NamedTuple):
    """What is to be done at one store: leases to renew, runs that obey commands."""

    backend: base.Backend
    due: Collection[HeldLease]
    hearing: Collection[HeldLease]


_renewer = LeaseRenewer()


def of_process() -> LeaseRenewer:
    """The renewer for all engines of this process."""
    return _renewer


def _forked() -> None:
    global _renewer
    _renewer = LeaseRenewer()  # no thread, and no lease, of the parent's is ours


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
