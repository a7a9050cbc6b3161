"""How one run is stopped from outside: suspended, cancelled, out of time, or no longer its owner's.

A thread that cancels leaves a `CancelRequest` where the run loop finds it (`StopSignal`), and tells
the calls in flight at once; the loop does the rest in its next turn.  A call is noted as in flight
before the loop looks for requests: so one of the two sees the other.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeGuard

from wbengine import exceptions
from wbengine import invocation as calls
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine.runtime.atoms import Call

__all__ = [
    "DEADLINE", "KEYS", "PARKED", "Arrival", "CancelRequest", "GivenUp", "InFlight", "Inbox",
    "Parked", "StopSignal", "SuspendRequest", "Withdrawn", "is_cancellable", "recorded",
]  # fmt: skip

_DEADLINE: Final = "deadline_exceeded"
_CANCELLED: Final = "cancelled"

#: Where a flow's `meta` says that, and when (unix seconds), it was given up.
KEYS: Final = (_DEADLINE, _CANCELLED)


class GivenUp(NamedTuple):
    """Time was up, or somebody asked for the flow to end (`cancelled`), for a `reason`, perhaps."""

    cancelled: bool
    reason: str | None = None

    @property
    def key(self) -> str:
        return _CANCELLED if self.cancelled else _DEADLINE

    def record(self, now: float) -> Any:
        """What a flow's `meta` says under `key`."""
        return {"at": now, "reason": self.reason} if self.cancelled else now

    def error(self, what: str, cause: BaseException | None = None) -> exceptions.ExecutionFailure:
        """What is raised about it, after `what` was given up."""
        if self.cancelled:
            told = f"{what} was cancelled{f': {self.reason}' if self.reason else ''}"
            return exceptions.Cancelled(told, cause)
        return exceptions.DeadlineExceeded(what, cause)

    def failure(self, what: str) -> ft.Failure:
        """`error`, as what an atom fails with."""
        return ft.Failure.from_exception(self.error(what))


DEADLINE: Final = GivenUp(False)


def recorded(meta: Mapping[str, Any]) -> GivenUp | None:
    """Why an earlier run gave the flow up, if it did."""
    found = meta.get(_CANCELLED)
    if found is not None:
        return GivenUp(True, found.get("reason") if isinstance(found, Mapping) else None)
    return DEADLINE if _DEADLINE in meta else None


class Withdrawn(list["Call"]):
    """Calls that were given back before they started."""


#: An outcome, calls that were taken back, or (None) that there is something to write or to stop.
Arrival = tuple["Call", calls.Outcome] | Withdrawn | None

Inbox = queue.SimpleQueue[Arrival]


class CancelRequest(NamedTuple):
    """These atoms are to end (None: all of them), and so is their flow."""

    nodes: Collection[int] | None
    reason: str | None = None

    def covers(self, call: calls.Invocation) -> bool:
        """Whether it is about what `call` does: whatever is being undone, goes on."""
        return call.action == calls.EXECUTE and (self.nodes is None or call.node in self.nodes)


class SuspendRequest(NamedTuple):
    """Nothing more is to start; `why` goes into the flow's history."""

    why: str | None = None


def is_cancellable(call: object) -> TypeGuard[calls.Invocation]:
    """Whether `call` ends early where it is undone."""
    return (
        isinstance(call, calls.Invocation)
        and call.task.cancel_on_revert
        and call.action == calls.EXECUTE
    )


class InFlight:
    """The calls that are under way, and the requests that were granted."""

    __slots__ = ("_executor", "cancellable", "ending", "granted", "sent")

    def __init__(self, executor: calls.TaskExecutor) -> None:
        self._executor = executor
        #: Handed out, and not back yet.
        self.sent: set[calls.Invocation] = set()
        #: Also for what is handed out later: what an earlier run left has to come to an end.
        self.granted: list[CancelRequest] = []
        #: What of it ends early where it is undone (`Task.cancel_on_revert`).
        self.cancellable: set[calls.Invocation] = set()
        #: The nodes of what was told so, until they run again.
        self.ending: set[int] = set()

    def targets(self, request: CancelRequest) -> set[calls.Invocation]:
        """What is under way and targets by `request`; from any thread."""
        return {call for call in self.sent.copy() if request.covers(call)}

    def cancel(self, invocations: Iterable[calls.Invocation]) -> None:
        """Let calls know that they are to end; those not started do not start any more."""
        found = list(invocations)
        for call in found:
            call.cancellation.cancel()
        if found:
            self._executor.cancel(found)

    def undo(self, found: Iterable[calls.Invocation]) -> None:
        """Let these end early, for what they are part of is being undone; idempotent."""
        told = [call for call in found if not call.cancellation.cancelled]
        self.ending.update(call.node for call in told)
        self.cancel(told)

    def cancellable_of(self, node: int) -> list[calls.Invocation]:
        """What of one node ends early; of a Map, the items that are under way."""
        return [call for call in self.cancellable if call.node == node]

    def expected(self, node: int, failure: ft.Failure) -> bool:
        """Whether an atom's failure says no more than that it was told to end early."""
        return node in self.ending and failure.check(exceptions.Cancelled) is not None

    def unwanted(self, call: calls.Invocation) -> CancelRequest | None:
        """The request that a call about to be handed out is against."""
        return next((request for request in self.granted if request.covers(call)), None)

    def refusal(self, call: calls.Invocation, request: CancelRequest) -> calls.Outcome:
        """The outcome of a call that is not handed out any more."""
        given_up = GivenUp(True, request.reason)
        return calls.Outcome(given_up.failure(f"Task {call.task.name!r}"))


#: Why a flow was suspended, in its history: nothing of it runs, and everything waits.
PARKED: Final = "it waits"


class Parked(NamedTuple):
    """That a run was suspended because nothing of its flow runs, and everything waits.

    For `seconds` (None: no time is set), or until there are more than `signals` (None: it waits for
    none).
    """

    seconds: float | None
    signals: int | None


class StopSignal:
    """The way to suspend one run, or to cancel it, from any thread and from signal handlers.

    Once the run is over the executor may be another run's, and nothing is taken back from it.
    """

    def __init__(self, executor: calls.TaskExecutor, inbox: Inbox, in_flight: InFlight) -> None:
        self._executor = executor
        self._inbox = inbox
        self._in_flight = in_flight
        self._lock = threading.RLock()
        self._over = False
        #: How the run ends is decided: to cancel comes too late.
        self.decided = False
        self._thread = -1
        #: Nothing more is to start in this run.
        self.suspending = False
        #: What is to end, until the loop has done it.
        self.requests: deque[CancelRequest] = deque()
        #: Nothing is to start now: for one of both reasons.
        self.stopping = False

    def begin(self) -> None:
        """The run begins; its loop is in the calling thread."""
        self._thread = threading.get_ident()

    def suspend(self) -> None:
        """Let nothing more start, and take back what has not started."""
        if threading.get_ident() == self._thread:
            # The loop may be in the midst of anything; it takes back what it can when it comes by.
            self.suspending = self.stopping = True
            self._inbox.put(None)
            return
        with self._lock:
            if not (self._over or self.suspending):
                self.suspending = self.stopping = True
                self._inbox.put(Withdrawn(self._executor.withdraw()))

    def cancel(self, request: CancelRequest) -> bool:
        """Let some atoms, or all, come to an end, and take back what has not started.

        Idempotent.  False: the run is over.
        """
        with self._lock:
            if self._over or self.decided:
                return False
            self.requests.append(request)
            self.stopping = True
            if threading.get_ident() == self._thread:
                if self._executor.immediate:  # a task of this very thread, maybe
                    self._in_flight.cancel(self._in_flight.targets(request))
                self._inbox.put(None)
            else:
                # In this order: what was there before, and is not taken back, runs.
                targets = self._in_flight.targets(request)
                taken = self._executor.withdraw()
                self._inbox.put(Withdrawn(taken))
                self._in_flight.cancel(targets.difference(taken))
            return True

    def decide(self) -> None:
        """How the run ends is decided now: to cancel later comes too late."""
        with self._lock:
            self.decided = True

    def granted(self) -> None:
        """The loop did what the first of the requests is about."""
        with self._lock:
            self.requests.popleft()
            # In this order: a signal's handler may come in between.
            self.stopping = self.suspending
            if self.requests:
                self.stopping = True

    def disown(self) -> None:
        """The flow is somebody else's from now on: the executor forgets it, and the loop is woken.

        From any thread.
        """
        with self._lock:
            if not self._over:
                self._over = True
                self._executor.disown()
                self._inbox.put(None)

    def end(self) -> None:
        """The run is over: to suspend it comes too late."""
        with self._lock:
            self._over = True
