"""Rules for requests whose progress is uncertain: after a loss, without reports, of earlier runs.

The rules receive an event of a request. They read the request and the known workers, update only
the fields of the request that concern its recovery, and return decisions for the tracker. There is
one implementation for each kind of workers: `recovery_with_ledger`, and two in
`recovery_without_ledger`, for workers of wbengine and for those of TaskFlow.

*Requests of the present run* are resent only because of evidence, never because of elapsed time
alone. The evidence is one of these facts: the broker had no queue for the message, or did not
confirm it; each worker of its queue reported a free slot twice without starting it; no worker of
its queue accepts requests, and its row is OPEN; a worker received it a second time; its owner is
lost, or does not list it. A request of a lost worker is resent only if its task may run twice, and
at most `max_resends` times.

*Requests of an earlier run* are *inherited*. The engine publishes them only after rows, or
asks, show that no worker runs them or will run them.
"""

from __future__ import annotations

import abc
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from wbengine.engines.worker_based._discovery.finder import ProxyWorkerFinder
from wbengine.engines.worker_based._messages.request_messages import Reply
from wbengine.engines.worker_based._requests import effects as fx
from wbengine.engines.worker_based._requests.options import RequestOptions
from wbengine.engines.worker_based._requests.request_state import (
    CANCELLED,
    UNWANTED,
    InFlight,
    OfRequest,
    RequestIndex,
    TrackedRequest,
)
from wbengine.types import failure as ft

#: Seconds until the first check of a request. The interval doubles each time, up to the maximum.
LOOKUP_PAUSE_SECONDS: Final = 3.0
MAX_LOOKUP_PAUSE_SECONDS: Final = 60.0

#: Number of rounds of heartbeats without the request that prove that no worker has it.
REQUIRED_ROUNDS: Final = 2


# Events: publishing.


class Inherited(OfRequest):
    """An earlier run may have sent the request."""


class Unconfirmed(OfRequest):
    """The broker neither confirmed nor refused the message."""


class Moved(OfRequest):
    """Another queue now offers the task of a request without a row, whose message may be used."""


class StartRefused(OfRequest):
    """The request was cancelled or has expired, but its message may be used."""


class TimedOut(OfRequest):
    """No worker started the request in time, although it was published."""


# Events: time.


class CheckDue(OfRequest):
    """The pause of `CheckLater` has ended."""


class RoundEnded(OfRequest):
    """A round of heartbeats has ended during the `Search` for the request."""


# Events: workers.


@dataclass(slots=True)
class OwnerLost(OfRequest):
    """The worker that has the request stopped or was lost."""

    worker: str | None


class Absent(OfRequest):
    """The owner did not list the request in two heartbeats."""


@dataclass(slots=True)
class Redelivered(OfRequest):
    """A second worker received the message with this epoch; the first may run the request."""

    epoch: int


@dataclass(slots=True)
class Denied(OfRequest):
    """A worker replied to an ask that it does not have the request."""

    worker: str | None


class ClaimRefused(OfRequest):
    """A worker could not claim the row, because another worker has it."""


# Events: rows.

#: State of a row whose ledger could not be read.
UNKNOWN: Final = "UNKNOWN"


class RowSnapshot(NamedTuple):
    """The part of a ledger row that a tracker needs.

    `state` is None if there is no row, and `UNKNOWN` if the ledger could not be read. `result` is
    the reply if the row is DONE (None: it cannot be decoded). `silence` is the number of seconds
    since the last heartbeat of the owner; `silent` is True if that is too long.
    """

    state: str | None
    holder: str | None = None
    result: Reply | None = None
    epoch: int | None = None
    silent: bool = False
    silence: float | None = None


@dataclass(slots=True)
class RowRead(OfRequest):
    """An `Inspect` read the row. `lost`: the worker whose loss was the reason."""

    row: RowSnapshot
    lost: str | None = None


@dataclass(slots=True)
class RowRevoked(OfRequest):
    """A `Revoke` removed the row, or not, because the row is claimed or does not exist."""

    revoked: bool


@dataclass(slots=True)
class RowReopened(OfRequest):
    """A `Reopen` with this epoch succeeded, or found the `reply` of a request that is done."""

    epoch: int
    reply: Reply | None


@dataclass(slots=True)
class RowConcluded(OfRequest):
    """A `Conclude` succeeded: the lost worker can no longer change the result."""

    failure: ft.Failure


Event = (
    Inherited | Unconfirmed | Moved | StartRefused | TimedOut | CheckDue | RoundEnded | OwnerLost
    | Absent | Redelivered | Denied | ClaimRefused | RowRead | RowRevoked | RowReopened
    | RowConcluded
)  # fmt: skip


# Decisions, which the tracker applies in order: where the request is.


class Inherit(OfRequest):
    """Keep a request of an earlier run until it is known whether a worker has it."""


@dataclass(slots=True)
class Hold(OfRequest):
    """Record that `worker` (None: an unknown one) has the request, and watch the worker.

    `silence` is the number of seconds since its last heartbeat.
    """

    worker: str | None
    silence: float = 0.0


# Decisions: sending it again.


@dataclass(slots=True)
class Send(OfRequest):
    """Send the request under a new epoch, unless it has expired or has a pending outcome.

    Before, it is certain that no worker runs an earlier copy, or the task may run twice. `lost`:
    a lost worker had the request.
    """

    lost: bool = False


class Reroute(OfRequest):
    """Choose a queue again, with the same epoch: no worker has the request."""


class Republish(OfRequest):
    """Publish another copy to the same queue with the same epoch."""


class Wait(OfRequest):
    """Wait until a worker offers the task, and do not publish."""


# Decisions: ending it.


@dataclass(slots=True)
class AcceptStored(OfRequest):
    """End the request with the reply in its row."""

    reply: Reply


class AcceptEarly(OfRequest):
    """End the request with the reply that arrived before it was submitted, if there is one."""


@dataclass(slots=True)
class Settle(OfRequest):
    failure: ft.Failure


@dataclass(slots=True)
class Lose(OfRequest):
    """End the request as lost with its worker. `exhausted`: after all permitted resends."""

    failure: ft.Failure
    exhausted: bool = False


class TimeOut(OfRequest):
    """End the request because no worker started it in time."""


# Decisions: waiting for evidence.


class CheckLater(OfRequest):
    """Check the request after a pause, which doubles each time."""


class RestartTimeout(OfRequest):
    pass


class StartFinalTimeout(OfRequest):
    """Start a timeout, even without `transition_timeout`: no queue may contain the request."""


class Search(OfRequest):
    """Review the request in each round of heartbeats, which become frequent."""


@dataclass(slots=True)
class Ask(OfRequest):
    """Ask a worker, or all workers, whether it has the request."""

    to: str


class AskQueue(OfRequest):
    """Publish an ask behind the request in its queue."""


class Refuse(OfRequest):
    """Tell all workers to refuse present copies of the request, if they arrive late."""


class Cancel(OfRequest):
    """Cancel the request in all workers."""


Decision = (
    Inherit | Hold | Send | Reroute | Republish | Wait | AcceptStored | AcceptEarly
    | Settle | Lose | TimeOut | CheckLater | RestartTimeout | StartFinalTimeout | Search | Ask
    | AskQueue | Refuse | Cancel | fx.Inspect | fx.Revoke | fx.Reopen | fx.Conclude
)  # fmt: skip


# Rules.


class Recovery(abc.ABC):
    """The rules that decide what to do about requests without a reply. They do no I/O.

    Each subclass contains the rules for one protocol of workers.

    :param finder: finds the live workers and their queues.
    :param in_flight: the requests in queues of the broker.
    :param inherited: the requests that an earlier run of the flow may have published.
    :param ended_workers: names of workers that announced their end.
    """

    def __init__(
        self,
        finder: ProxyWorkerFinder,
        options: RequestOptions,
        in_flight: InFlight,
        inherited: RequestIndex,
        ended_workers: Collection[str],
    ) -> None:
        self._finder = finder
        self._options = options
        self._in_flight = in_flight
        self._inherited = inherited
        self._ended_workers = ended_workers

    @abc.abstractmethod
    def on_event(self, event: Event, now: float) -> list[Decision]:
        """Decide what to do about the request of an event that has not ended."""

    def on_queue_lost_worker(
        self, queue: str, worker: str | None, is_unserved: bool
    ) -> list[Decision]:
        """Decide about the requests in a queue that lost a worker, perhaps the last one."""
        return [Reroute(each) for each in self._in_flight.get(queue)] if is_unserved else []

    def review_queue(self, queue: str, now: float) -> list[Decision]:
        """Decide, after a round of heartbeats, about requests that were sent but not started."""
        return []

    def review_inherited(self, now: float) -> list[Decision]:
        """Decide, after a round of heartbeats, about requests of earlier runs."""
        return []

    # What the rules share.

    def _lose(self, tracked: TrackedRequest, now: float) -> list[Decision]:
        """Resend the request of a lost worker if that is harmless, else end it."""
        if self._is_final_loss(tracked, now):
            return [self._loss(tracked, tracked.loss())]
        tracked.resends += 1
        return [Send(tracked, lost=True)]

    def _loss(self, tracked: TrackedRequest, failure: ft.Failure) -> Lose:
        exhausted = (
            tracked.resends >= self._options.max_resends
            and tracked.pending_outcome is None
            and self._repeats(tracked)
        )
        return Lose(tracked, failure, exhausted)

    def _is_final_loss(self, tracked: TrackedRequest, now: float) -> bool:
        return (
            (tracked.expires_at is not None and now >= tracked.expires_at)
            or tracked.resends >= self._options.max_resends
            or tracked.pending_outcome in (CANCELLED, UNWANTED)
            or not self._repeats(tracked)
        )

    def _repeats(self, tracked: TrackedRequest) -> bool:
        return self._options.repeats(tracked.invocation.task)

    def _is_skipped_by_idle(self, tracked: TrackedRequest) -> bool:
        return (
            tracked.sent_at is not None
            and tracked.queue is not None
            and self._finder.free_slot_rounds(tracked.queue, tracked.sent_at) >= REQUIRED_ROUNDS
        )

    def _skipped_by_idle(self, queue: str) -> Iterator[TrackedRequest]:
        for tracked in self._in_flight.each(queue):
            if tracked.sent_at is None or tracked.lookups:
                continue
            if not self._is_skipped_by_idle(tracked):
                break  # Then idle workers have not skipped the later requests either.
            yield tracked


def end_unstarted(tracked: TrackedRequest) -> list[Decision]:
    """End a request that no worker has started."""
    if tracked.pending_outcome is not None:
        return [Settle(tracked, tracked.failure_before_start())]
    return [TimeOut(tracked)]


def lookup_pause(count: int) -> float:
    return min(MAX_LOOKUP_PAUSE_SECONDS, LOOKUP_PAUSE_SECONDS * 2.0 ** min(count, 10))
