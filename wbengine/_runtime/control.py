"""The calls of a run, and how it is stopped: suspend, cancel, park, deadline, loss of the lease.

A thread that cancels adds a `CancelRequest` to the `StopSignal` and cancels the calls in flight at
once; the loop does the rest in its next iteration. The loop adds a call to the calls in flight
before it reads the requests, so either the loop or the other thread sees the other's change.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeGuard

from wbengine import exceptions
from wbengine._calls import invocation as calls
from wbengine._runtime.inbox import Inbox, StopRequested, Withdrawn
from wbengine._tasks.child import Child
from wbengine.persistence import models
from wbengine.persistence._pauses import TaskPause
from wbengine.types import failure as ft

__all__ = [
    "DEADLINE", "CancelRequest", "GivenUp", "InFlight", "Parked", "Parking",
    "Refusals", "StopSignal", "SuspendRequest", "is_cancellable", "read_given_up",
    "unknown_result",
]  # fmt: skip


class GivenUp(NamedTuple):
    """Why a flow is reverted as a whole, although no task of it requires this.

    :ivar cause: key of `meta` in which it is stored. CANCELLED: unfinished atoms were cancelled by
        a request. DEADLINE_EXCEEDED: they were cancelled at the deadline. UNDONE: all atoms were
        complete when the flow was reverted by a request.
    :ivar remaining: names of tasks whose effects remain, for UNDONE.
    """

    cause: Literal["cancelled", "deadline_exceeded", "undone"]
    reason: str | None = None
    remaining: tuple[str, ...] = ()

    @property
    def cancelled(self) -> bool:
        return self.cause == models.CANCELLED

    @property
    def undone(self) -> bool:
        return self.cause == models.UNDONE

    def note(self, flow: models.FlowDetail, now: float) -> None:
        if self.cause == models.CANCELLED:
            flow.cancel(now, self.reason)
        elif self.cause == models.UNDONE:
            flow.undo(now, self.reason, self.remaining)
        else:
            flow.meta[models.DEADLINE_EXCEEDED] = now

    def error(
        self, subject: str, cause: BaseException | None = None
    ) -> exceptions.ExecutionFailure:
        if self.cancelled:
            message = f"{subject} was cancelled{f': {self.reason}' if self.reason else ''}"
            return exceptions.Cancelled(message, cause)
        return exceptions.DeadlineExceeded(subject, cause)

    def failure(self, subject: str) -> ft.Failure:
        return ft.Failure.from_exception(self.error(subject))


DEADLINE: Final = GivenUp(models.DEADLINE_EXCEEDED)


def read_given_up(meta: Mapping[str, Any]) -> GivenUp | None:
    for cause in (models.CANCELLED, models.UNDONE):
        request = meta.get(cause)
        if request is not None:
            return GivenUp(cause, request.get("reason") if isinstance(request, Mapping) else None)
    return DEADLINE if models.DEADLINE_EXCEEDED in meta else None


def unknown_result(name: str, refusal: ft.Failure | None = None) -> ft.Failure:
    """Return the failure of an execution that ended with its engine and does not run again.

    :param refusal: why it does not run again.
    """
    reason = "" if refusal is None else f" ({refusal.exception_str})"
    text = f"Task {name!r} ended with its engine and is not repeated{reason}: its effect is unknown"
    return ft.Failure.from_exception(exceptions.Interrupted(text))


class CancelRequest(NamedTuple):
    """A request to cancel these atoms (None: all) and, with them, their flow."""

    nodes: Collection[int] | None
    reason: str | None = None

    def covers(self, call: calls.Invocation) -> bool:
        """Return whether the request concerns `call`. Reverts continue."""
        return call.action == calls.EXECUTE and (self.nodes is None or call.node in self.nodes)


class SuspendRequest(NamedTuple):
    """A request to start nothing more; the flow's history contains `reason`."""

    reason: str | None = None


def is_cancellable(call: object) -> TypeGuard[calls.Invocation]:
    return (
        isinstance(call, calls.Invocation)
        and call.task.cancel_on_revert
        and call.action == calls.EXECUTE
    )


class Refusals(NamedTuple):
    """Calls to submit, those among them to cancel afterwards, and refused calls."""

    to_submit: list[calls.Invocation]
    to_cancel: list[calls.Invocation]
    refused: list[tuple[calls.Invocation, calls.Outcome]]


class InFlight:
    """The submitted calls of a run that have no outcome, and the requests to cancel calls.

    It does not contain calls that wait at a gate.
    """

    __slots__ = (
        "_executor", "cancellable", "cancelled_nodes", "granted", "submitted",
    )  # fmt: skip

    def __init__(self, executor: calls.TaskExecutor) -> None:
        self._executor = executor
        #: Submitted calls without an outcome.
        self.submitted: set[calls.Invocation] = set()
        #: Requests also apply to later calls: recovered calls of an earlier run must end.
        self.granted: list[CancelRequest] = []
        self.cancellable: set[calls.Invocation] = set()
        #: Nodes that were cancelled because their scope is reverted, until they run again.
        self.cancelled_nodes: set[int] = set()

    def targets(self, request: CancelRequest) -> set[calls.Invocation]:
        """Return the calls in flight that `request` concerns. Thread-safe."""
        return {call for call in self.submitted.copy() if request.covers(call)}

    def cancel(self, invocations: Iterable[calls.Invocation]) -> None:
        targets = list(invocations)
        for call in targets:
            call.cancellation.cancel()
        if targets:
            self._executor.cancel(targets)

    def cancel_for_revert(self, invocations: Iterable[calls.Invocation]) -> None:
        """Cancel these calls because their scope is reverted. Idempotent."""
        uncancelled = [call for call in invocations if not call.cancellation.cancelled]
        self.cancelled_nodes.update(call.node for call in uncancelled)
        self.cancel(uncancelled)

    def cancellable_of(self, node: int) -> list[calls.Invocation]:
        """Return the cancellable calls of a node: for a Map, those of its items in flight."""
        return [call for call in self.cancellable if call.node == node]

    def is_expected(self, node: int, failure: ft.Failure) -> bool:
        """Return whether a failure is only the consequence of such a cancellation."""
        return node in self.cancelled_nodes and failure.check(exceptions.Cancelled) is not None

    def refuse(self, tasks: Iterable[calls.Invocation]) -> Refusals:
        """Separate cancelled executions from calls to submit.

        A call that an earlier run may have in flight is submitted, so that it is found, and then
        cancelled.
        """
        refusals = Refusals([], [], [])
        for call in tasks:
            request = next((request for request in self.granted if request.covers(call)), None)
            if request is None or call.recovered:
                refusals.to_submit.append(call)
                if request is not None:
                    refusals.to_cancel.append(call)
            elif isinstance(call.task, Child):  # Its flow may run, and has to be cancelled.
                call.cancellation.cancel()
                refusals.to_submit.append(call)
            else:
                refusals.refused.append((call, self.refusal(call, request)))
        return refusals

    def cancel_recovered(
        self,
        tasks: Iterable[calls.Invocation],
        to_cancel: list[calls.Invocation],
        is_reverting: Callable[[int], bool],
    ) -> list[calls.Invocation]:
        """Return the calls to cancel after their submission: also those of a reverted scope.

        An executor that runs tasks in this thread has to cancel recovered calls before they are
        submitted.
        """
        unwanted = [call for call in tasks if is_cancellable(call) and is_reverting(call.node)]
        self.cancelled_nodes.update(call.node for call in unwanted)
        if not self._executor.immediate:
            return [*to_cancel, *unwanted]
        self.cancel(call for call in {*unwanted, *to_cancel} if call.recovered)
        return []

    def refusal(self, call: calls.Invocation, request: CancelRequest) -> calls.Outcome:
        given_up = GivenUp(models.CANCELLED, request.reason)
        return calls.Outcome(given_up.failure(f"Task {call.task.name!r}"))


class Parked(NamedTuple):
    """What the flow of a parked run waits for.

    :ivar seconds: maximum time to wait; None: no deadline.
    :ivar signals: number of signals received so far; a further one ends the wait. None: it waits
        for no signal.
    :ivar pauses: the pauses of its ready tasks; the change or the end of one ends the wait.
    :ivar limit: name of the limit for whose permit the flow itself, or all of its ready tasks wait.
    :ivar units: the units of this limit that it takes, or its first task.
    :ivar has_begun: whether its tasks may begin, except those that wait.
    :ivar ends: number of the received signals that report ends of child flows.
    :ivar end_delay: seconds for which a further end may wait until it ends the parking.
    """

    seconds: float | None
    signals: int | None
    pauses: tuple[TaskPause, ...] = ()
    limit: str | None = None
    units: float = 1.0
    has_begun: bool = True
    ends: int = 0
    end_delay: float = 0.0


class Parking:
    """Suspends a run once if nothing runs and nothing is due within `min_seconds`."""

    def __init__(self, suspend: Callable[[], object], min_seconds: float) -> None:
        self.park: Final = suspend
        self.min_seconds: Final = min_seconds
        #: Condition that ends the parking. None: the run is not parked.
        self.parked: Parked | None = None


class StopSignal:
    """Suspends or cancels a run, from any thread and from signal handlers.

    After the run is over, the executor may belong to another run, so nothing is withdrawn from it.
    """

    def __init__(self, executor: calls.TaskExecutor, inbox: Inbox, in_flight: InFlight) -> None:
        self._executor = executor
        self._inbox = inbox
        self._in_flight = in_flight
        self._lock = threading.RLock()
        self._over = False
        #: True if the final state is decided: a request to cancel is then too late.
        self.decided = False
        self._thread = -1
        self.suspending = False
        self.requests: deque[CancelRequest] = deque()
        #: Nothing may start now: the run is suspending, or a request is not handled.
        self.stopping = False

    def begin(self) -> None:
        self._thread = threading.get_ident()

    def suspend(self) -> None:
        if threading.get_ident() == self._thread:
            # The loop may be at any point; it withdraws what it can in its next iteration.
            self.suspending = self.stopping = True
            self._inbox.put(StopRequested())
            return
        with self._lock:
            if not (self._over or self.suspending):
                self.suspending = self.stopping = True
                self._inbox.put(Withdrawn(self._executor.withdraw()))

    def cancel(self, request: CancelRequest) -> bool:
        """Cancel atoms, and withdraw calls that have not started. Idempotent.

        :returns: False if the run is over.
        """
        with self._lock:
            if self._over or self.decided:
                return False
            self.requests.append(request)
            self.stopping = True
            if threading.get_ident() == self._thread:
                if self._executor.immediate:  # the caller may be a task that runs in this thread
                    self._in_flight.cancel(self._in_flight.targets(request))
                self._inbox.put(StopRequested())
            else:
                # In this order: a call that was in flight and is not withdrawn, runs.
                targets = self._in_flight.targets(request)
                withdrawn = self._executor.withdraw()
                self._inbox.put(Withdrawn(withdrawn))
                self._in_flight.cancel(targets.difference(withdrawn))
            return True

    def decide(self) -> None:
        with self._lock:
            self.decided = True

    def remove_request(self) -> None:
        with self._lock:
            self.requests.popleft()
            # `requests` is read last, because a signal handler may add a request at any moment.
            self.stopping = self.suspending
            if self.requests:
                self.stopping = True

    def disown(self) -> None:
        """Let the executor forget the flow, and wake the loop: another process owns the flow now.

        Thread-safe.
        """
        with self._lock:
            if not self._over:
                self._over = True
                self._executor.disown()
                self._inbox.put(StopRequested())

    def end(self) -> None:
        """Record that the run is over: later requests to suspend have no effect."""
        with self._lock:
            self._over = True
