"""Acquisition and release of a flow's lease for one run of an engine."""

from __future__ import annotations

import logging
import math
import queue
import time
from collections.abc import Callable, Collection, Iterator, Sized
from typing import Final

from wbengine import exceptions, states
from wbengine import storage as storage_module
from wbengine._concurrency import clocks, scopes
from wbengine.persistence import _commands, _lease_renewer, _leases, _owners, base

__all__ = ["FAIL", "ON_BUSY", "WAIT", "Ownership", "StateRefused", "WaitEnded"]

LOG: Final = logging.getLogger(__name__)

#: Values of the option `on_busy`, for a flow that another engine runs.
FAIL: Final = "fail"
WAIT: Final = "wait"
ON_BUSY: Final = (FAIL, WAIT)

#: Maximum seconds between two attempts to acquire the lease, for a run and for a single change.
_MAX_PAUSE_SECONDS: Final = 1.0
_MAX_CHANGE_PAUSE_SECONDS: Final = 0.05


class WaitEnded(exceptions.FlowBusy):
    """Waiting for the flow was ended by `suspend` or `cancel`."""


class StateRefused(exceptions.InvalidState):
    """The stored state of the flow does not allow the operation; nothing was changed."""


class Ownership:
    """Ownership of one flow by one engine; one run at a time.

    The state of the flow decides whether an engine may run or reset it. Another engine may change
    this state until the lease is acquired, so the state is checked then, on the stored records. An
    end of the flow that another engine reached after this engine read the flow is refused.

    `lease_seconds`: seconds after which a lease that is not renewed expires. `clock` is the clock
    of the engine. It follows the clock of the store. Waits for a lease take real seconds, because
    leases do.
    """

    def __init__(
        self,
        storage: storage_module.Storage,
        clock: clocks.Clock,
        *,
        on_busy: str = FAIL,
        lease_seconds: float = _leases.LEASE_SECONDS,
    ) -> None:
        self._storage = storage
        # The latest change of the flow's state that this engine read or made.
        self._known_change = self._latest_change()
        self._clock = clock
        self.waits = on_busy == WAIT
        self._lease_seconds = lease_seconds
        # Wakes the run that waits for the flow; None: no run waits.
        self._wake_queue: queue.SimpleQueue[None] | None = None
        #: The current lease; None: no run, or no backend.
        self.held: _lease_renewer.HeldLease | None = None

    def wake(self) -> bool:
        """End the wait for the lease; return False if no run waits.

        May be called from any thread and from signal handlers.
        """
        waking = self._wake_queue
        if waking is not None:
            waking.put(None)
        return waking is not None

    @scopes.scope
    def owned(
        self,
        due: float | None = None,
        deadline: float | None = None,
        requests: Sized = (),
        *,
        momentary: bool = False,
        check_state: Callable[[str], object] | None = None,
        refused_ends: Collection[str] = (states.FAILURE, states.REVERTED),
        carries_out_reruns: bool = False,
    ) -> Iterator[None]:
        """Own the flow during a `with` block; without a backend this does nothing.

        `due` is the time of the engine's clock at which `deadline` seconds are over. If there are
        `requests` (to cancel the run), this does not wait. `momentary`: for a single change outside
        of a run. `check_state`: raises `StateRefused` if the operation does not accept a state.
        `refused_ends`: states that are refused if the flow entered them after this engine read it.
        `carries_out_reruns`: if the flow has a command that runs it again, the caller carries it
        out, and the state is not checked here.

        A momentary owner is waited for in any case, at most `leases.CHANGE_WAIT_SECONDS` seconds.

        :raises FlowBusy: if another engine runs the flow, and `on_busy` is not 'wait'.
        :raises DeadlineExceeded: if the other engine did not end in time.
        :raises WaitEnded: if `wake` was called during the wait, or there are `requests`.
        :raises StateRefused: if the state of the flow does not allow the operation.
        :raises StorageFailure: if the store cannot be read.
        """
        backend = self._storage.backend
        if backend is None:
            yield
            return
        owner = _owners.new(self._clock, momentary=momentary)
        held_lease: _lease_renewer.HeldLease | None = None
        try:
            self._wake_queue = queue.SimpleQueue()
            try:
                held_lease = self._wait(backend, str(owner), due, deadline, requests)
            finally:
                self._wake_queue = None
            command = held_lease.lease.command
            if not (carries_out_reruns and command is not None and command.reruns_flow):
                self._check_state(check_state, refused_ends)
            self.held = held_lease
            _lease_renewer.of_process().add(held_lease)
            try:
                yield
            except exceptions.LeaseLost as error:
                held_lease.lose(error)
                raise exceptions.LeaseLost(
                    f"Flow {self._storage.flow_name!r} was taken over or deleted during"
                    f" this run, which writes nothing more: {error}",
                    error,
                ) from error
        finally:
            try:
                self._release(owner, held_lease)
            except BaseException as error:
                if not isinstance(error, Exception):  # an interrupt; each step can be repeated
                    self._release(owner, held_lease)
                raise

    def _release(self, owner: _owners.Owner, held_lease: _lease_renewer.HeldLease | None) -> None:
        """Release the lease; without `held_lease`, one acquired just before an interrupt."""
        if self.held is not None:  # the state was not refused
            self._known_change = self._latest_change()
            self.held = None
        if held_lease is not None:
            held_lease.close()
            _lease_renewer.of_process().remove(held_lease)
        command = None if held_lease is None else held_lease.executed_command
        has_run = held_lease is not None and held_lease.has_run
        self._storage.writer.release_lease(
            str(owner),
            is_lost=held_lease is not None and held_lease.error is not None,
            command=command,
            settle=self._settle if has_run or command is not None else None,
        )
        owner.end_run()

    def _latest_change(self) -> object:
        detail = self._storage.flow_detail
        return detail.state, detail.history[-1:]

    def _check_state(
        self, check_state: Callable[[str], object] | None, refused_ends: Collection[str]
    ) -> None:
        state = self._storage.get_flow_state()
        if state in refused_ends and self._latest_change() != self._known_change:
            raise StateRefused(
                f"Flow {self._storage.flow_name!r} has ended in {state} since this engine read it:"
                " another engine ran it. To run it again, load it again"
            )
        if check_state is not None:
            check_state(state)

    def _settle(self, command: base.FlowCommand, is_executed: bool) -> bool:
        """Handle a command at the end of a run. Return False if the next engine has to execute it.

        If the flow has ended, a command without effect is refused. If the flow is suspended, a
        command to suspend it that the run did not execute adds its reason. A command that runs the
        flow again stays, if the state allows it.
        """
        storage = self._storage
        state, is_cancel = storage.get_flow_state(), command.what == _commands.CANCEL
        if command.reruns_flow:
            reason = _commands.refusal(command.what, storage.flow_uuid, state)
            if reason is not None:
                LOG.warning("Flow %r is not %s: %s", storage.flow_name, command.describe(), reason)
            return reason is not None
        if state in states.FLOW_ENDED:
            if not (is_cancel and is_executed) or state == states.SUCCESS:
                LOG.warning(
                    "Flow %r has ended in %s: it was not %s",
                    storage.flow_name, state, command.describe(),
                )  # fmt: skip
            return True
        if is_cancel:
            # A parked flow waits for the ends of its children. Its records tell to revert it.
            return is_executed and storage.flow_detail.is_parked
        if state != states.SUSPENDED:
            return False
        if not is_executed:
            storage.explain_flow_state(self._clock.time(), command.describe())
        return True

    def _wait(
        self,
        backend: base.Backend,
        owner: str,
        due: float | None,
        deadline: float | None,
        requests: Sized,
    ) -> _lease_renewer.HeldLease:
        pause, until = 0.01, time.monotonic() + _leases.CHANGE_WAIT_SECONDS
        latest = math.inf if due is None else time.monotonic() + due - self._clock.monotonic()
        while True:
            try:
                return self._acquire(backend, owner)
            except exceptions.FlowBusy as busy:
                changing = _owners.is_momentary(busy.owner)
                now = time.monotonic()
                if not (self.waits or (changing and now < until)):
                    text = f"{busy} (use on_busy='wait' to wait for its end)"
                    raise _reworded(busy, text, exceptions.FlowBusy) from None
                remaining = latest - now
                if remaining <= 0:
                    raise exceptions.DeadlineExceeded(
                        f"{busy}: it did not end within {deadline:g} seconds", busy
                    ) from busy
                if self._wait_ended(min(pause, remaining, max(busy.seconds, 0.01)), requests):
                    text = f"{busy}; `suspend` or `cancel` ended the wait for its end"
                    raise _reworded(busy, text, WaitEnded) from None
                pause = min(
                    pause * 2, _MAX_CHANGE_PAUSE_SECONDS if changing else _MAX_PAUSE_SECONDS
                )

    def _wait_ended(self, seconds: float, requests: Sized) -> bool:
        assert self._wake_queue is not None
        if requests:  # added before the wait
            return True
        try:
            self._wake_queue.get(True, seconds)
        except queue.Empty:
            return False
        return True

    def _acquire(self, backend: base.Backend, owner: str) -> _lease_renewer.HeldLease:
        acquired_at = _lease_renewer.now()
        lease = self._storage.acquire_lease(owner, self._lease_seconds)
        self._clock.follow(lease.clock_ahead)
        return _lease_renewer.HeldLease(backend, lease, self._lease_seconds, acquired_at)


def _reworded(
    busy: exceptions.FlowBusy, text: str, kind: type[exceptions.FlowBusy]
) -> exceptions.FlowBusy:
    return kind(text, owner=busy.owner, epoch=busy.epoch, seconds=busy.seconds)
