"""Store and report incidents: workers lost with tasks, and tasks that are resent."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from wbengine import states
from wbengine import storage as storage_module
from wbengine.persistence import models
from wbengine.types import notifier as notifier_module

__all__ = ["IncidentEvent", "Incidents"]


class IncidentEvent(NamedTuple):
    """An incident to deliver in the thread of the engine, after it is written."""

    event: str
    details: dict[str, Any]

    def notify_listeners(self, notifier: notifier_module.Notifier | None) -> None:
        if notifier is not None:
            notifier.notify_only(self.event, self.details)


class Incidents:
    """Stores the incidents of a run in its records. Thread-safe.

    Events for listeners of `notifier` stay in `undelivered` until the thread of the engine, which
    `wake` wakes, takes them.
    """

    def __init__(
        self,
        storage: storage_module.Storage,
        notifier: notifier_module.Notifier,
        wake: Callable[[], None],
    ) -> None:
        self._storage = storage
        self._notifier = notifier
        self._wake = wake
        self.undelivered: deque[IncidentEvent] = deque()

    def take(self) -> list[IncidentEvent]:
        return [self.undelivered.popleft() for _ in range(len(self.undelivered))]

    def add(
        self,
        record: models.AtomDetail,
        attempt: int,
        event: str,
        worker: str | None,
        item: int = -1,
    ) -> None:
        """Add an incident of an atom or an item.

        WORKER_LOST: `worker` was lost. RESENT: the request was sent again and no worker has begun
        it, or the attempt began again after the engine that ran it had ended.
        """
        if record.attempt != attempt or record.state not in _UNDER_WAY:
            return
        resent = event == states.RESENT
        lost, later = (None, worker) if resent else (worker, None)
        incident = models.Incident(event, time.time(), attempt, lost, later, item)
        record.add_incident(incident)
        if resent and item < 0:
            record.worker = record.started = None
        if self._storage.backend is not None:
            self._storage.writer.mark(record)
        if resent and self._storage.flow_detail.resent_at is None:
            self._storage.flow_detail.resent_at = incident.at
            self._storage.writer.mark_flow()
        if event in self._notifier.topics:
            self.undelivered.append(IncidentEvent(event, _details(record, incident)))
            self._wake()


_UNDER_WAY = (states.RUNNING, states.REVERTING)


def _details(record: models.AtomDetail, incident: models.Incident) -> dict[str, Any]:
    return {
        f"{record.kind}_name": record.name,
        f"{record.kind}_uuid": record.uuid,
        "old_state": record.state,
        "attempt": record.attempt,
        "executions": record.executions,
        "reversions": record.reversions,
        "at": incident.at,
        "worker": incident.worker,
        "lost_worker": incident.lost,
        "item": None if incident.item < 0 else incident.item,
    }
