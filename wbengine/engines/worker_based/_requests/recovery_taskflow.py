"""Rules for workers of TaskFlow, which have no ledger and do not reply to asks.

Their replies have no epochs, so a request that they may have is not sent again by the same run.
"""

from __future__ import annotations

from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._requests import events as ev
from wbengine.engines.worker_based._requests import recovery_decisions as dc
from wbengine.engines.worker_based._requests.events import Event
from wbengine.engines.worker_based._requests.recovery import (
    REQUIRED_ROUNDS,
    Recovery,
    end_unstarted,
)
from wbengine.engines.worker_based._requests.recovery_decisions import Decision
from wbengine.engines.worker_based._requests.request_state import TrackedRequest


class TaskFlowRecovery(Recovery):
    """Resends repeatable tasks of earlier runs. All other lost requests fail or time out."""

    def on_event(self, event: Event, now: float) -> list[Decision]:
        tracked = event.tracked
        match event:
            case ev.Inherited() if self._repeats(tracked):
                return [dc.Reroute(tracked)]
            case ev.Inherited():
                return [dc.Settle(tracked, tracked.loss())]
            case ev.OwnerLost():
                return [dc.Lose(tracked, tracked.loss())]
            case ev.Moved():
                return [dc.Wait(tracked)]  # Its worker may still reply.
            case ev.TimedOut():
                return end_unstarted(tracked)
            case ev.StartRefused():
                tracked.search_started_at = now
                return [dc.Search(tracked), dc.CheckLater(tracked)]
            case ev.CheckDue():
                return [dc.CheckLater(tracked)]
            case ev.RoundEnded():
                return self._review(tracked, now)
        return []

    def _review(self, tracked: TrackedRequest, now: float) -> list[Decision]:
        """End a request that must not start, once its queue has no workers any more."""
        if self._finder.outage_seconds(tracked.search_started_at, now):
            tracked.search_started_at = now  # The engine received no reports in this time.
        elif tracked.queue is None or not self._finder.slots(tracked.queue):
            waits = tracked.state in pr.WAITING_STATES and tracked.pending_outcome is not None
            if waits and tracked.lookups >= REQUIRED_ROUNDS:
                return [dc.Settle(tracked, tracked.failure_before_start())]
        return []
