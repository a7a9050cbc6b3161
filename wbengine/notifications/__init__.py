"""Notifications: messages about flows that failed, and other events of a store.

`wbengine serve` sends them with the table `[notify]` of wbengine.toml, and a `ConductorService`
with its parameter `notify`. A hook of a program receives each `Event`::

    def on_event(event: notifications.Event) -> None:
        if event.kind == notifications.FLOW_FAILED:
            page_somebody(event.name, event.reason)
"""

from __future__ import annotations

from wbengine.notifications._event import (
    BACKLOG,
    FLOW_BLOCKED,
    FLOW_FAILED,
    FLOW_RECOVERED,
    FLOW_TRASHED,
    KINDS,
    SCHEDULE_MISSED,
    TEST,
    UNDO_INCOMPLETE,
    WORKER_LOST,
    Event,
)

__all__ = [
    "BACKLOG",
    "FLOW_BLOCKED",
    "FLOW_FAILED",
    "FLOW_RECOVERED",
    "FLOW_TRASHED",
    "KINDS",
    "SCHEDULE_MISSED",
    "TEST",
    "UNDO_INCOMPLETE",
    "WORKER_LOST",
    "Event",
]
