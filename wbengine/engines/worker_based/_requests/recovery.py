"""Rules for requests whose progress is uncertain: after a loss, without reports, of earlier runs.

The rules receive an event of a request. They read the request and the known workers, update only
the fields of the request that concern its recovery, and return decisions for the tracker. There is
one implementation for each kind of workers: `recovery_with_ledger`, `recovery_without_ledger` and
`recovery_taskflow`.

*Requests of the present run* are resent only because of evidence, never because of elapsed time
alone. The evidence is one of these facts: the broker had no queue for the message, or did not
confirm it; each worker of its queue reported a free slot twice without starting it; a worker
received it a second time; its owner is lost, or does not list it. A request of a lost worker is
resent only if its task may run twice, and at most `max_resends` times.

*Requests of an earlier run* are *inherited*. The engine publishes them only after rows, or
asks, show that no worker runs them or will run them.
"""

from __future__ import annotations

import abc
from collections.abc import Collection, Iterator
from typing import Final

from wbengine.engines.worker_based._discovery.finder import ProxyWorkerFinder
from wbengine.engines.worker_based._requests import recovery_decisions as dc
from wbengine.engines.worker_based._requests.events import Event
from wbengine.engines.worker_based._requests.options import RequestOptions
from wbengine.engines.worker_based._requests.recovery_decisions import Decision
from wbengine.engines.worker_based._requests.request_state import (
    CANCELLED,
    UNWANTED,
    InFlight,
    RequestIndex,
    TrackedRequest,
)
from wbengine.types import failure as ft

#: Seconds until the first check of a request. The interval doubles each time, up to the maximum.
LOOKUP_PAUSE_SECONDS: Final = 3.0
MAX_LOOKUP_PAUSE_SECONDS: Final = 60.0

#: Number of rounds of heartbeats without the request that prove that no worker has it.
REQUIRED_ROUNDS: Final = 2


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
        return [dc.Reroute(each) for each in self._in_flight.get(queue)] if is_unserved else []

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
        return [dc.Send(tracked, lost=True)]

    def _loss(self, tracked: TrackedRequest, failure: ft.Failure) -> dc.Lose:
        exhausted = (
            tracked.resends >= self._options.max_resends
            and tracked.pending_outcome is None
            and self._repeats(tracked)
        )
        return dc.Lose(tracked, failure, exhausted)

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
        return [dc.Settle(tracked, tracked.failure_before_start())]
    return [dc.TimeOut(tracked)]


def lookup_pause(count: int) -> float:
    return min(MAX_LOOKUP_PAUSE_SECONDS, LOOKUP_PAUSE_SECONDS * 2.0 ** min(count, 10))
