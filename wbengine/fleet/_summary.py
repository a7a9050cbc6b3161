"""The load of a fleet: the number of its workers, slots and waiting requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any, Final

from wbengine.fleet import _message_queues
from wbengine.fleet.client import Fleet, WorkerView

__all__ = ["FIELDS", "summary"]

FIELDS: Final = (
    "broker", "blocked", "exchange", "workers", "states", "slots", "running", "topics", "versions",
    "waiting",
)  # fmt: skip


def summary(
    fleet: Fleet, workers: Collection[WorkerView], queues: Collection[_message_queues.QueueView]
) -> dict[str, Any]:
    """Return the load of a fleet as data for JSON."""
    return {
        "broker": fleet.target.shown,
        "blocked": fleet.is_blocked,
        "exchange": fleet.exchange,
        "workers": len(workers),
        "states": dict(Counter(view.state for view in workers)),
        "slots": sum(view.slots for view in workers),
        "running": sum(view.running for view in workers),
        "topics": dict(Counter(topic for view in workers for topic in view.topics)),
        "versions": dict(Counter(view.version or "?" for view in workers)),
        "waiting": sum(view.messages for view in queues if view.kind == _message_queues.REQUESTS),
    }
