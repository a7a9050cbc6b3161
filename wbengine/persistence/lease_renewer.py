"""Renews the leases of all engines of this process, until they are given back or lost; and looks
for the commands that others left for their flows.

Each store has a thread of its own for that, so that one which does not answer holds up only the
leases that are kept there.  It starts when a flow is run, and ends when none has been for a while.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from wbengine import exceptions
from wbengine._crash import crashpoint
from wbengine.concurrency import per_process
from wbengine.persistence import base, leases
from wbengine.signals import Signal

__all__ = ["HeldLease", "LeaseRenewer", "of_process", "send_signal"]

LOG: Final = logging.getLogger(__name__)

#: Seconds the thread waits for another flow to be run.
LINGER: Final = 2.0

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


def ignore_signals(found: Sequence[Signal]) -> None:
    """Where no task waits for them."""


def never() -> bool:
    """Where no task waits for signals."""
    return False


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
        #: Whether a task waits for a signal, and what is told all that the flow was given.
        self.awaits_signals: Callable[[], bool] = never
        self.on_signals: Callable[[Sequence[Signal]], object] = ignore_signals
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
    """Renews the leases it is given: those of each store in a thread of their own."""

    def __init__(self, clock: Callable[[], float] = now) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._stores: weakref.WeakKeyDictionary[base.Backend, _StoreLeases]
        self._stores = weakref.WeakKeyDictionary()

    def add(self, held: HeldLease) -> None:
        """Renew it from now on."""
        with self._lock:
            store = self._stores.get(held.backend)
            if store is None:
                store = self._stores[held.backend] = _StoreLeases(self._clock)
        store.add(held)

    def remove(self, held: HeldLease) -> None:
        """Renew it no more; it may be being renewed right now."""
        with self._lock:
            store = self._stores.get(held.backend)
        if store is not None:
            store.remove(held)

    def look_now(self, flow_uuid: str) -> None:
        """Look at once for what others left for a flow, if it is run in this process."""
        with self._lock:
            stores = list(self._stores.values())
        for store in stores:
            store.look_now(flow_uuid)


class _StoreLeases:
    """The leases that are kept in one store, and the thread that renews them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._held: dict[HeldLease, None] = {}
        self._running = False
        # When the thread looks at its leases the next time, and when for what others left.
        self._until = 0.0
        self._look = 0.0

    def add(self, held: HeldLease) -> None:
        with self._changed:
            self._held[held] = None
            if not self._running:
                self._start()
            elif held.due < self._until:
                self._changed.notify()

    def remove(self, held: HeldLease) -> None:
        with self._changed:
            self._held.pop(held, None)

    def look_now(self, flow_uuid: str) -> None:
        with self._changed:
            if any(held.lease.flow == flow_uuid for held in self._held):
                self._look = 0.0
                self._changed.notify()

    def _start(self) -> None:
        thread = threading.Thread(target=self._main, name="wbengine-leases", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # `check` renews a lease then, if its time is over.
            LOG.warning("No thread keeps the leases of this process: %s", error)
        else:
            self._running = True

    def _main(self) -> None:
        self._look = self._clock() + LOOK
        while held_leases := self._wait():
            now = self._clock()
            for held in held_leases:
                if held.due > now or held not in self._held:
                    continue
                if held.error is None:
                    held.renew()
                if held.error is not None:
                    self.remove(held)
            if self._look <= now:
                self._look = now + LOOK
                self._hear([held for held in held_leases if held.on_command is not None])

    def _wait(self) -> list[HeldLease]:
        """All leases, once one is due or it is time to look for commands; none: the thread ends."""
        with self._changed:
            while True:
                if not self._held:
                    self._until = math.inf  # any lease that comes is due before
                    if not self._changed.wait_for(lambda: self._held, LINGER):
                        self._running = False
                        return []
                self._until = min(self._look, *(held.due for held in self._held))
                seconds = self._until - self._clock()
                if seconds <= 0:
                    return list(self._held)
                self._changed.wait(seconds)

    def _hear(self, held_leases: Collection[HeldLease]) -> None:
        """Obey the commands about these flows: one read for all of them."""
        if not held_leases:
            return
        found: Mapping[str, base.FlowCommand] = {}
        backend = next(iter(held_leases)).backend
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
        self._tell_signals(backend, [held for held in held_leases if held.awaits_signals()])

    def _tell_signals(self, backend: base.Backend, waiting: Collection[HeldLease]) -> None:
        """Tell what was signalled to these flows: one read for all of them."""
        if not waiting:
            return
        try:
            with contextlib.closing(backend.get_connection()) as connection:
                found = connection.signals([held.lease.flow for held in waiting])
        except Exception as error:  # the next look may succeed
            LOG.debug("Signals to %d flows could not be read: %s", len(waiting), error)
            return
        for held in waiting:
            held.on_signals(found.get(held.lease.flow, ()))


#: The renewer for all engines of this process.
of_process: Final = per_process.PerProcess(LeaseRenewer)


def send_signal(
    backend: base.Backend, uuid: str, signal: Signal, known: Collection[str] | None = None
) -> None:
    """`Connection.send_signal`; an engine of this process hears of it at once."""
    with contextlib.closing(backend.get_connection()) as connection:
        connection.send_signal(uuid, signal, known)
    of_process().look_now(uuid)
