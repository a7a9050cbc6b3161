"""Taking the lease of a flow for one run of an engine, waiting for it, and giving it back."""

from __future__ import annotations

import contextlib
import logging
import math
import queue
from collections.abc import Iterator, Sized
from typing import Final

from wbengine import _clock, exceptions
from wbengine import storage as storage_module
from wbengine.persistence import base, lease_renewer, leases, owners

__all__ = ["FAIL", "ON_BUSY", "WAIT", "Ownership", "WaitEnded"]

LOG: Final = logging.getLogger(__name__)

#: What `run` does about a flow that somebody else runs.
FAIL: Final = "fail"
WAIT: Final = "wait"
ON_BUSY: Final = (FAIL, WAIT)

#: The longest wait between two looks at a flow that somebody else runs, or changes.
_LONGEST: Final = 1.0
_LONGEST_OF_CHANGE: Final = 0.05


class WaitEnded(exceptions.FlowBusy):
    """Waiting for the flow was ended by `suspend`, or `cancel`."""


class Ownership:
    """One engine's way to own its flow; one run at a time.

    `lease_seconds`: seconds after which a lease that is not renewed ends.
    """

    def __init__(
        self,
        storage: storage_module.Storage,
        clock: _clock.Clock,
        *,
        on_busy: str = FAIL,
        lease_seconds: float = leases.LEASE_SECONDS,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self.waits = on_busy == WAIT
        self._lease_seconds = lease_seconds
        # Wakes the run that waits for the flow; None while none does.
        self._waking: queue.SimpleQueue[None] | None = None
        #: The current one; None: no run, or no backend.
        self.held: lease_renewer.HeldLease | None = None

    def wake(self) -> bool:
        """Let who waits for the flow give up; False if nobody does.

        From any thread, and from signal handlers.
        """
        waking = self._waking
        if waking is not None:
            waking.put(None)
        return waking is not None

    @contextlib.contextmanager
    def owned(
        self,
        due: float | None = None,
        deadline: float | None = None,
        requests: Sized = (),
        *,
        momentary: bool = False,
    ) -> Iterator[None]:
        """Own the flow for the length of a `with` block; without a backend everybody does.

        `due` is the moment at which `deadline` seconds are over; a run that is to be
        cancelled (there are `requests`) does not wait.  `momentary`: for one change, without a run.

        An owner that is momentary is waited for in any case, `leases.MOMENT` seconds at most.

        :raises FlowBusy: somebody else runs it, and waiting was not asked for.
        :raises DeadlineExceeded: nor did the owner end in time.
        :raises WaitEnded: `wake` was called meanwhile, or there are `requests`.
        :raises StorageFailure: the store could not be asked.
        """
        backend = self._storage.backend
        if backend is None:
            yield
            return
        owner = owners.new(self._clock, momentary=momentary)
        try:
            self._waking = self._clock.queue()
            try:
                held = self._wait(backend, str(owner), due, deadline, requests)
            finally:
                self._waking = None
            self.held = held
            lease_renewer.of_process().add(held)
            try:
                yield
            except exceptions.LeaseLost as error:
                held.lose(error)
                raise exceptions.LeaseLost(
                    f"Flow {self._storage.flow_name!r} was taken over or removed while it was run"
                    f" here, and nothing more is written by this run: {error}",
                    error,
                ) from error
            finally:
                self.held = None
                held.on_lost = held.on_tick = lease_renewer.ignore
                held.on_command = None
                held.awaits_signals = lease_renewer.never
                lease_renewer.of_process().remove(held)
                with self._storage.writer.mutex:  # between the two nothing here can be written
                    self._storage.writer.detach_lease()
                    if held.error is None:
                        self._storage.writer.give_back_lease(held.lease)
        finally:
            owner.let_go()

    def _wait(
        self,
        backend: base.Backend,
        owner: str,
        due: float | None,
        deadline: float | None,
        requests: Sized,
    ) -> lease_renewer.HeldLease:
        pause, until = 0.01, self._clock.monotonic() + leases.MOMENT
        while True:
            try:
                return self._take(backend, owner)
            except exceptions.FlowBusy as busy:
                changing = owners.is_momentary(busy.owner)
                now = self._clock.monotonic()
                if not (self.waits or (changing and now < until)):
                    text = f"{busy} (on_busy='wait' waits for the end)"
                    raise _reworded(busy, text, exceptions.FlowBusy) from None
                left = math.inf if due is None else due - now
                if left <= 0:
                    raise exceptions.DeadlineExceeded(
                        f"{busy}: it did not end within {deadline:g} seconds", busy
                    ) from busy
                if self._woken(min(pause, left, max(busy.seconds, 0.01)), requests):
                    text = f"{busy}; it was waited for until `suspend` or `cancel` ended that"
                    raise _reworded(busy, text, WaitEnded) from None
                pause = min(pause * 2, _LONGEST_OF_CHANGE if changing else _LONGEST)

    def _woken(self, seconds: float, requests: Sized) -> bool:
        """Whether waiting is over, within so many seconds."""
        assert self._waking is not None
        if requests:  # before it waited
            return True
        try:
            self._waking.get(True, seconds)
        except queue.Empty:
            return False
        return True

    def _take(self, backend: base.Backend, owner: str) -> lease_renewer.HeldLease:
        taken = lease_renewer.now()
        lease = self._storage.take_lease(owner, self._lease_seconds)
        return lease_renewer.HeldLease(backend, lease, self._lease_seconds, taken)


def _reworded(
    busy: exceptions.FlowBusy, text: str, kind: type[exceptions.FlowBusy]
) -> exceptions.FlowBusy:
    return kind(text, owner=busy.owner, epoch=busy.epoch, seconds=busy.seconds)
