"""Renewal of the leases of all engines in this process, and delivery of what the store contains.

Engines receive commands, signals and pauses of task types.

Each store has its own thread, so that a slow store delays only its own leases. The thread starts
with the first flow and ends `IDLE_SECONDS` after the last one.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from wbengine import exceptions
from wbengine._concurrency import clocks, conditions, per_process, threads
from wbengine._concurrency.crash_points import crashpoint
from wbengine.persistence import _leases, base
from wbengine.persistence._pauses import TaskPause
from wbengine.signals import Signal, not_awaited

__all__ = ["HeldLease", "LeaseRenewer", "of_process", "send_signal"]

LOG: Final = logging.getLogger(__name__)

#: Time from the end of the last flow until the thread ends.
IDLE_SECONDS: Final = 2.0

#: Interval between two polls for commands.
POLL_SECONDS: Final = 1.0

_RENEWALS_PER_LEASE: Final = 3

now: Callable[[], float] = clocks.uptime


def do_nothing() -> None:
    """Do nothing."""


def ignore_signals(signals: Sequence[Signal]) -> None:
    """Do nothing."""


def _log_pauses(old: tuple[TaskPause, ...], new: tuple[TaskPause, ...]) -> None:
    known = set(old)
    for pause in new:
        if pause not in known:
            LOG.info("Tasks of type %s are %s", pause.pattern, pause.describe())
    patterns = {pause.pattern for pause in new}
    for pause in old:
        if pause.pattern not in patterns:
            LOG.info("Tasks of type %s are resumed", pause.pattern)


def ignore_pauses(pauses: tuple[TaskPause, ...]) -> None:
    """Ignore the pauses: no run has begun."""


def never() -> bool:
    return False


class HeldLease:
    """A lease of one engine. While `check` succeeds, no other engine runs the flow.

    `on_lost` is called once, from any thread, when the lease is lost.
    """

    def __init__(
        self,
        backend: base.Backend,
        lease: _leases.Lease,
        seconds: float,
        acquired_at: float,
        clock: Callable[[], float] = now,
    ) -> None:
        self.backend = backend
        self.lease = lease
        self.on_lost: Callable[[], None] = do_nothing
        #: Whether a run has begun under this lease.
        self.has_run = False
        #: Executes a command, and returns False if the run was already over. None: no run.
        self.on_command: Callable[[base.FlowCommand], bool] | None = None
        self.on_tick: Callable[[], None] = do_nothing
        #: Whether a task waits for a signal, and the function that receives all signals.
        self.awaits_signals: Callable[[], bool] = never
        self.on_signals: Callable[[Sequence[Signal]], object] = ignore_signals
        #: Receives the pauses of task types in the store after a change.
        self.on_pauses: Callable[[tuple[TaskPause, ...]], object] = ignore_pauses
        self.pauses: tuple[TaskPause, ...] = ()
        self._received_command: base.FlowCommand | None = None
        #: The latest command that was executed.
        self.executed_command: base.FlowCommand | None = None
        self.error: exceptions.LeaseLost | None = None
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        #: Expiry and time of the next renewal.
        self.until = acquired_at + seconds
        self.due = acquired_at + seconds / _RENEWALS_PER_LEASE

    def check(self) -> None:
        """Verify that the engine owns the lease. Call this before each start of work.

        Usually this only reads the clock. If the lease has expired, it tries one renewal.

        :raises LeaseLost: if the lease is lost or could not be renewed.
        """
        has_expired = self.error is None and self._clock() >= self.until
        if has_expired and not self.renew():
            self._lose("it was not renewed in time")
        if self.error is not None:
            raise self.error

    def renew(self) -> bool:
        """Renew the lease and return True. After a failure, the thread tries again later."""
        started = self._clock()
        try:
            with contextlib.closing(self.backend.get_connection()) as connection:
                crashpoint("lease.before-renew")
                connection.renew_lease(self.lease, self._seconds)
        except exceptions.LeaseLost as error:
            self._lose(str(error))
        except Exception as error:
            LOG.warning("The lease of flow %s could not be renewed: %s", self.lease.flow, error)
            self.due = self._clock() + min(1.0, self._seconds / (4 * _RENEWALS_PER_LEASE))
        else:
            self.until = max(self.until, started + self._seconds)
            self.due = started + max(self._seconds / _RENEWALS_PER_LEASE, 0.05)
            return True
        return False

    def update_pauses(self, pauses: tuple[TaskPause, ...]) -> None:
        if pauses != self.pauses:
            self.pauses = pauses
            self.on_pauses(pauses)

    def begin_run(self, on_command: Callable[[base.FlowCommand], bool]) -> None:
        """Accept commands, and execute the one that the flow had when the lease was acquired."""
        self.on_command, self.has_run = on_command, True
        command = self._received_command = self.lease.command
        if command is not None and command != self.executed_command:
            self._execute(command)

    def receive(self, command: base.FlowCommand) -> None:
        """Execute a command for this run in a separate thread, unless it was received before.

        The command stays in the store until the run ends, so that views can display it.
        """
        if self.on_command is None or command == self._received_command:
            return
        # A separate thread, because a slow command must not delay renewals.
        work = functools.partial(self._execute, command)
        try:
            threads.Thread(target=work, name="wbengine-command", daemon=True).start()
        except RuntimeError as error:  # The process has too many threads: the next poll repeats it.
            LOG.warning("Flow %s is not %s yet: %s", self.lease.flow, command.describe(), error)
        else:
            self._received_command = command

    def _execute(self, command: base.FlowCommand) -> None:
        do = self.on_command
        if do is None:
            return
        try:
            if do(command):
                self.executed_command = command
        except Exception as error:
            LOG.warning("Flow %s cannot be %s: %s", self.lease.flow, command.describe(), error)

    def close(self) -> None:
        """Call no functions of the engine any more, and keep none. Idempotent."""
        self.on_command = None
        self.on_lost = self.on_tick = do_nothing
        self.awaits_signals = never

    def lose(self, error: exceptions.LeaseLost | exceptions.StorageFailure) -> None:
        """Report that the store rejected a write, or was deleted or replaced."""
        self._lose(str(error))

    def _lose(self, reason: str) -> None:
        with self._lock:
            if self.error is not None:
                return
            self.error = exceptions.LeaseLost(reason)
        self.on_lost()


class LeaseRenewer:
    def __init__(self, clock: Callable[[], float] = now) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._stores: weakref.WeakKeyDictionary[base.Backend, _StoreLeases]
        self._stores = weakref.WeakKeyDictionary()

    def add(self, held_lease: HeldLease) -> None:
        self._store(held_lease.backend).add(held_lease)

    def remove(self, held_lease: HeldLease) -> None:
        """Stop renewing a lease. A renewal that is in progress may still complete."""
        with self._lock:
            store = self._stores.get(held_lease.backend)
        if store is not None:
            store.remove(held_lease)

    def forget(self, backend: base.Backend) -> None:
        """Drop all leases of a store, and end its thread."""
        with self._lock:
            store = self._stores.pop(backend, None)
        if store is not None:
            store.end()

    def pauses(self, backend: base.Backend, *, is_fresh: bool = False) -> tuple[TaskPause, ...]:
        """Return the pauses in a store, as read at most `POLL_SECONDS` ago.

        :param is_fresh: read them now.
        :raises StorageFailure: if they have to be read and cannot be.
        """
        return self._store(backend).pauses(backend, is_fresh)

    def poll_now(self, flow_uuid: str) -> None:
        """Poll commands and signals of a flow immediately, if it runs in this process."""
        with self._lock:
            stores = list(self._stores.values())
        for store in stores:
            store.poll_now(flow_uuid)

    def _store(self, backend: base.Backend) -> _StoreLeases:
        with self._lock:
            store = self._stores.get(backend)
            if store is None:
                store = self._stores[backend] = _StoreLeases(self._clock)
            return store


class _StoreLeases:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._changed = conditions.Condition(self._lock)
        self._held_leases: dict[HeldLease, None] = {}
        self._running = False
        self._idle_seconds = IDLE_SECONDS
        # `_until`: end of the current wait of the thread. `_poll_at`: time of the next poll.
        self._until = 0.0
        self._poll_at = 0.0
        self._pauses: tuple[TaskPause, ...] = ()
        self._pauses_read_at = -math.inf

    def add(self, held_lease: HeldLease) -> None:
        with self._lock:
            self._held_leases[held_lease] = None
            if not self._running:
                self._start()
            elif held_lease.due < self._until:
                self._changed.notify_all()

    def remove(self, held_lease: HeldLease) -> None:
        with self._lock:
            self._held_leases.pop(held_lease, None)

    def end(self) -> None:
        with self._lock:
            self._held_leases.clear()
            self._idle_seconds = 0.0
            self._changed.notify_all()

    def poll_now(self, flow_uuid: str) -> None:
        with self._lock:
            if any(held_lease.lease.flow == flow_uuid for held_lease in self._held_leases):
                self._poll_at = 0.0
                self._changed.notify_all()

    def pauses(self, backend: base.Backend, is_fresh: bool) -> tuple[TaskPause, ...]:
        if is_fresh or self._clock() - self._pauses_read_at > POLL_SECONDS:
            with contextlib.closing(backend.get_connection()) as connection:
                self._read_pauses(connection)
        return self._pauses

    def _read_pauses(self, connection: base.Connection) -> None:
        started = self._clock()
        old_pauses, self._pauses = self._pauses, tuple(connection.pauses())
        self._pauses_read_at = started
        if self._pauses != old_pauses:
            _log_pauses(old_pauses, self._pauses)

    def _start(self) -> None:
        thread = threads.Thread(target=self._main, name="wbengine-leases", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # Without the thread, `check` renews each lease when it has expired.
            LOG.warning("The thread that renews the leases of this process cannot start: %s", error)
        finally:  # Also after an interrupt.
            self._running = thread.ident is not None

    def _main(self) -> None:
        self._poll_at = self._clock() + POLL_SECONDS
        while held_leases := self._wait():
            try:
                self._renew_and_poll(held_leases)
            except Exception:  # An engine failed. The leases of all others need this thread.
                LOG.exception("An engine could not receive an event of its flow")

    def _renew_and_poll(self, held_leases: Collection[HeldLease]) -> None:
        now = self._clock()
        for held_lease in held_leases:
            if held_lease.due > now or held_lease not in self._held_leases:
                continue
            if held_lease.error is None:
                held_lease.renew()
            if held_lease.error is not None:
                self.remove(held_lease)
        if self._poll_at <= now:
            self._poll_at = now + POLL_SECONDS
            self._poll(
                [held_lease for held_lease in held_leases if held_lease.on_command is not None]
            )

    def _wait(self) -> list[HeldLease]:
        """Wait until a renewal or poll is due. Return all leases, or no lease to end the thread."""
        with self._lock:
            while True:
                if not self._held_leases:
                    self._until = math.inf  # So that each new lease ends the wait.
                    self._changed.wait(self._idle_seconds)
                    if not self._held_leases:
                        self._running = False
                        return []
                self._until = min(
                    self._poll_at, *(held_lease.due for held_lease in self._held_leases)
                )
                seconds = self._until - self._clock()
                if seconds <= 0:
                    return list(self._held_leases)
                self._changed.wait(seconds)

    def _poll(self, held_leases: Collection[HeldLease]) -> None:
        if not held_leases:
            return
        commands: Mapping[str, base.FlowCommand] = {}
        backend = next(iter(held_leases)).backend
        try:
            backend.check_identity()
        except exceptions.StorageFailure as error:
            for held_lease in held_leases:
                held_lease.lose(error)
            return
        try:
            with contextlib.closing(backend.get_connection()) as connection:
                commands = connection.commands(
                    [held_lease.lease.flow for held_lease in held_leases]
                )
                self._read_pauses(connection)
        except Exception as error:
            LOG.debug("Commands about %d flows could not be read: %s", len(held_leases), error)
        for held_lease in held_leases:
            held_lease.on_tick()
            held_lease.update_pauses(self._pauses)
            command = commands.get(held_lease.lease.flow)
            if command is not None:
                held_lease.receive(command)
        self._deliver_signals(
            backend, [held_lease for held_lease in held_leases if held_lease.awaits_signals()]
        )

    def _deliver_signals(self, backend: base.Backend, waiting: Collection[HeldLease]) -> None:
        if not waiting:
            return
        try:
            with contextlib.closing(backend.get_connection()) as connection:
                signals = connection.signals([held_lease.lease.flow for held_lease in waiting])
        except exceptions.CorruptRecord as error:
            # The engine of that flow reports it.
            readable = [each for each in waiting if each.lease.flow != error.flow]
            if len(readable) < len(waiting):
                self._deliver_signals(backend, readable)
            return
        except Exception as error:
            LOG.debug("Signals to %d flows could not be read: %s", len(waiting), error)
            return
        for held_lease in waiting:
            held_lease.on_signals(signals.get(held_lease.lease.flow, ()))


of_process: Final = per_process.PerProcess(LeaseRenewer)


def send_signal(
    backend: base.Backend,
    uuid: str,
    signal: Signal,
    known: Collection[str] | None = None,
    *,
    any_name: bool = False,
    strict: bool = False,
) -> Signal:
    """Send a signal (see `Connection.send_signal`) and return it with its number.

    An engine of this process receives it immediately.

    :param strict: raise `NotFound` if nothing awaits the signal (`Connection.awaited_signals`).
    """
    with contextlib.closing(backend.get_connection()) as connection:
        if strict:
            reason = not_awaited(signal.name, connection.awaited_signals(uuid))
            if reason is not None:
                raise exceptions.NotFound(f"Signal to flow {uuid} was not sent: {reason}")
        stored = connection.send_signal(uuid, signal, known, any_name=any_name)
    of_process().poll_now(uuid)
    return stored
