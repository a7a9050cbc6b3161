"""Rules without a ledger: the engine asks the workers, unless they are those of TaskFlow.

An *ask* (`wbe-ask`) finds out which worker has a request. The engine resends, with the next epoch,
only a request that no worker has: all workers of its queue have sent two heartbeats since the ask.
If all workers are busy, the engine publishes the ask behind the request in its queue: a reply
proves that all earlier messages were consumed.
"""

from __future__ import annotations

from typing import Final

from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._requests import recovery as rc
from wbengine.engines.worker_based._requests.recovery import REQUIRED_ROUNDS, Decision, Recovery
from wbengine.engines.worker_based._requests.request_state import (
    ABSENT,
    CANCELLED,
    LOST,
    UNSEEN,
    UNSENT,
    TrackedRequest,
)

#: Number of unanswered asks to workers after which the ask in the queue is repeated.
MAX_UNANSWERED_ASKS: Final = 3


class AskRecovery(Recovery):
    """Asks workers, and resends requests that no worker has."""

    def on_event(self, event: rc.Event, now: float) -> list[Decision]:
        tracked = event.tracked
        match event:
            case rc.Inherited():
                return _on_inherited(tracked)
            case rc.Unconfirmed() | rc.StartRefused():
                return self._search(tracked, UNSENT, now)
            case rc.Absent():
                return self._search(tracked, LOST, now)
            case rc.Redelivered(_, epoch) if not self._is_outdated(tracked, epoch):
                return self._search(tracked, LOST, now)
            case rc.CheckDue():
                return self._on_check_due(tracked)
            case rc.RoundEnded():
                return self._review(tracked, now)
            case rc.Denied(_, worker) if tracked.lookups and worker is not None:
                return self._on_denied(tracked, worker, now)
            case rc.OwnerLost():
                return self._lose(tracked, now)
            case rc.TimedOut():
                inherited = tracked.index is self._inherited
                return self._lose(tracked, now) if inherited else rc.end_unstarted(tracked)
            case rc.Moved() if tracked.resends >= self._options.max_resends:
                return [rc.Settle(tracked, tracked.loss())]
            case rc.Moved():
                tracked.resends += 1
                return [rc.Send(tracked)]
        return []

    def _is_outdated(self, tracked: TrackedRequest, epoch: int) -> bool:
        """Return whether a message is one of an earlier run, while a newer one waits."""
        waits = tracked.state in pr.WAITING_STATES and tracked.index is not self._inherited
        return waits and epoch < tracked.epoch

    # Searches for a worker that has a request.

    def review_inherited(self, now: float) -> list[Decision]:
        decisions: list[Decision] = []
        for task_cls in self._inherited.names():
            queues = self._finder.queues(task_cls)
            if len(queues) != 1:
                continue
            for tracked in self._inherited.each(task_cls):
                if tracked.suspect is not None or self._repeats(tracked):
                    continue
                if self._finder.report_rounds(queues[0], tracked.search_started_at):
                    tracked.queue = queues[0]
                    decisions += self._search(tracked, UNSENT, now)
        return decisions

    def review_queue(self, queue: str, now: float) -> list[Decision]:
        decisions: list[Decision] = []
        for tracked in self._skipped_by_idle(queue):
            decisions += self._search(tracked, UNSENT, now)
        return decisions

    def _search(self, tracked: TrackedRequest, why: str, now: float) -> list[Decision]:
        if tracked.suspect != LOST or not tracked.lookups:
            tracked.suspect = why
        decisions: list[Decision] = [rc.Search(tracked)]
        if not tracked.lookups:
            tracked.search_started_at = now
            decisions.append(rc.CheckLater(tracked))
        decisions.append(_ask(tracked))
        if tracked.pending_outcome is None and not self._is_skipped_by_idle(tracked):
            decisions += self._ask_queue(tracked)
        return decisions

    def _ask_queue(self, tracked: TrackedRequest) -> list[Decision]:
        searched = tracked.suspect in (UNSENT, UNSEEN) and tracked.queue is not None
        if searched and self._finder.uses_extended_protocol(tracked.queue or ""):
            return [rc.AskQueue(tracked)]
        return []

    def _on_check_due(self, tracked: TrackedRequest) -> list[Decision]:
        decisions: list[Decision] = []
        if tracked.index is self._inherited:
            if tracked.pending_outcome is not None or self._repeats(tracked):
                return [rc.Send(tracked)]
            if tracked.state == pr.WAITING:
                # The request may wait in a queue of the broker without any limit.
                decisions.append(rc.StartFinalTimeout(tracked))
        decisions.append(rc.CheckLater(tracked))
        if tracked.pending_outcome == CANCELLED:
            decisions.append(rc.Cancel(tracked))
        decisions.append(_ask(tracked))
        if tracked.worker is None and tracked.lookups >= MAX_UNANSWERED_ASKS:
            decisions += self._ask_queue(tracked)
        return decisions

    # Results of a search.

    def _on_denied(self, tracked: TrackedRequest, worker: str, now: float) -> list[Decision]:
        if tracked.worker is None and tracked.state in pr.WAITING_STATES:
            return self._on_queue_passed(tracked, now)
        return self._on_not_found(tracked, now) if worker == tracked.worker else []

    def _on_queue_passed(self, tracked: TrackedRequest, now: float) -> list[Decision]:
        """Ask again: a reply proves that all messages before the ask were consumed."""
        if tracked.suspect == UNSENT:
            tracked.suspect = UNSEEN
            return self._ask_queue(tracked)
        if tracked.suspect == UNSEEN:
            tracked.suspect, tracked.search_started_at = ABSENT, now
            return [rc.Ask(tracked, env.ALL_WORKERS)]
        return []

    def _review(self, tracked: TrackedRequest, now: float) -> list[Decision]:
        if self._finder.outage_seconds(tracked.search_started_at, now):
            # The engine received no reports in this time: ask again.
            tracked.search_started_at = now
            return [rc.Ask(tracked, env.ALL_WORKERS)]
        if tracked.index is self._inherited and self._may_not_have_reported(tracked, now):
            return []
        return self._on_not_found(tracked, now) if self._is_missing(tracked) else []

    def _may_not_have_reported(self, tracked: TrackedRequest, now: float) -> bool:
        """Return whether a live worker that has the request may not have reported it yet."""
        listening_seconds = now - tracked.born - self._finder.outage_seconds(tracked.born, now)
        return listening_seconds <= self._finder.patience

    def _is_missing(self, tracked: TrackedRequest) -> bool:
        queue = tracked.queue
        if queue is None or not self._finder.slots(queue):
            # Without workers, a message is certainly consumed only if a worker was lost with it.
            return tracked.lookups >= REQUIRED_ROUNDS and (
                tracked.suspect == LOST or tracked.pending_outcome is not None
            )
        if not self._finder.uses_extended_protocol(queue):
            return False
        if tracked.suspect in (LOST, ABSENT):
            return self._finder.report_rounds(queue, tracked.search_started_at) >= REQUIRED_ROUNDS
        return self._finder.free_slot_rounds(queue, tracked.search_started_at) >= REQUIRED_ROUNDS

    def _on_not_found(self, tracked: TrackedRequest, now: float) -> list[Decision]:
        tracked.lookups, why = 0, tracked.suspect
        if tracked.pending_outcome is not None and tracked.state in pr.WAITING_STATES:
            return [rc.Settle(tracked, tracked.failure_before_start())]
        # This engine does not know which workers were lost before it started.
        if tracked.index is self._inherited:
            return self._refuse(tracked) + self._lose(tracked, now)
        since = tracked.sent_at or tracked.born
        no_worker_lost = (
            not tracked.possibly_lost and self._in_flight.last_loss(tracked.queue) <= since
        )
        if why == LOST:
            # The broker redelivers a message after an outage or the loss of a worker. After an
            # outage, no worker has started the request.
            outage_seconds = self._finder.outage_seconds(since, now)
            untaken = no_worker_lost and not tracked.ran and outage_seconds > 0
            return [rc.Send(tracked)] if untaken else self._lose(tracked, now)
        if no_worker_lost:
            return [*self._refuse(tracked), rc.Send(tracked)]
        # A worker that was lost after publishing may have had the request.
        return self._lose(tracked, now)

    def _refuse(self, tracked: TrackedRequest) -> list[Decision]:
        return [] if self._repeats(tracked) else [rc.Refuse(tracked)]


def _on_inherited(tracked: TrackedRequest) -> list[Decision]:
    tracked.lowest_epoch = 0  # Any result of this attempt is valid.
    return [
        rc.Inherit(tracked),
        rc.CheckLater(tracked),
        rc.Ask(tracked, env.ALL_WORKERS),
        rc.AcceptEarly(tracked),
    ]


def _ask(tracked: TrackedRequest) -> rc.Ask:
    """Ask the owner of a request, or all workers."""
    owner = tracked.worker if tracked.state == pr.RUNNING else None
    return rc.Ask(tracked, owner or env.ALL_WORKERS)


class TaskFlowRecovery(Recovery):
    """Rules for workers of TaskFlow, which do not reply to asks.

    Repeatable tasks of earlier runs are resent. All other lost requests fail or time out: replies
    have no epochs, so a request that a worker may have is not sent again by the same run.
    """

    def on_event(self, event: rc.Event, now: float) -> list[Decision]:
        tracked = event.tracked
        match event:
            case rc.Inherited() if self._repeats(tracked):
                return [rc.Reroute(tracked)]
            case rc.Inherited():
                return [rc.Settle(tracked, tracked.loss())]
            case rc.OwnerLost():
                return [rc.Lose(tracked, tracked.loss())]
            case rc.Moved():
                return [rc.Wait(tracked)]  # Its worker may still reply.
            case rc.TimedOut():
                return rc.end_unstarted(tracked)
            case rc.StartRefused():
                tracked.search_started_at = now
                return [rc.Search(tracked), rc.CheckLater(tracked)]
            case rc.CheckDue():
                return [rc.CheckLater(tracked)]
            case rc.RoundEnded():
                return self._review(tracked, now)
        return []

    def _review(self, tracked: TrackedRequest, now: float) -> list[Decision]:
        """End a request that must not start, once its queue has no workers any more."""
        if self._finder.outage_seconds(tracked.search_started_at, now):
            tracked.search_started_at = now  # The engine received no reports in this time.
        elif tracked.queue is None or not self._finder.slots(tracked.queue):
            waits = tracked.state in pr.WAITING_STATES and tracked.pending_outcome is not None
            if waits and tracked.lookups >= REQUIRED_ROUNDS:
                return [rc.Settle(tracked, tracked.failure_before_start())]
        return []
