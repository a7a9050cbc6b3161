"""Events that are sent."""

from __future__ import annotations

import dataclasses
import uuid as uuids
from collections.abc import Mapping
from typing import Any, Final

from wbengine.views import _formatting

__all__ = [
    "BACKLOG", "FLOW_BLOCKED", "FLOW_FAILED", "FLOW_RECOVERED", "FLOW_TRASHED", "KINDS",
    "SCHEDULE_MISSED", "TEST", "UNDO_INCOMPLETE", "WORKER_LOST", "Event", "event_id",
]  # fmt: skip

FLOW_FAILED: Final = "flow_failed"
FLOW_RECOVERED: Final = "flow_recovered"
FLOW_BLOCKED: Final = "flow_blocked"
FLOW_TRASHED: Final = "flow_trashed"
UNDO_INCOMPLETE: Final = "undo_incomplete"
WORKER_LOST: Final = "worker_lost"
BACKLOG: Final = "backlog"
SCHEDULE_MISSED: Final = "schedule_missed"
#: Kind of the event of a test message, which every destination receives.
TEST: Final = "test"

#: Kinds of events that can be selected.
KINDS: Final = (
    FLOW_FAILED, FLOW_RECOVERED, FLOW_BLOCKED, FLOW_TRASHED, UNDO_INCOMPLETE, WORKER_LOST, BACKLOG,
    SCHEDULE_MISSED,
)  # fmt: skip

_NAMESPACE: Final = uuids.UUID("5b2f4f0e-9d0c-4b53-8a52-0d1c5b0a7f1e")


def event_id(kind: str, *parts: object) -> str:
    """Return the id of an event: the same in all processes and for all destinations."""
    return str(uuids.uuid5(_NAMESPACE, " ".join((kind, *map(str, parts)))))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event of a store. It contains no values of flows; texts are masked as on pages.

    :ivar id: identifies the event: an event that is sent again has the same id.
    :ivar kind: one of `KINDS`, or `TEST`.
    :ivar at: time in Unix seconds.
    :ivar name: name of the flow or of the schedule; for `BACKLOG`, of the oldest flow.
    :ivar flow: uuid of the flow, or None.
    :ivar state: state of the flow after the event, or None.
    :ivar reason: error or explanation in one line, or None.
    :ivar worker: the lost worker, or None.
    :ivar tags: tags of the flow. Numbers and booleans keep their types; times are in ISO 8601.
    :ivar url: URL of the page on the dashboard, or None.
    """

    id: str
    kind: str
    at: float
    name: str
    flow: str | None = None
    state: str | None = None
    reason: str | None = None
    worker: str | None = None
    tags: Mapping[str, str | int | float | bool] = dataclasses.field(default_factory=dict)
    url: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the event as a JSON object. `time` is `at` in ISO 8601."""
        content = dataclasses.asdict(self)
        content["tags"] = dict(self.tags)
        return {**content, "time": _formatting.iso(self.at)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Event:
        """Return the event of `to_dict`."""
        names = (field.name for field in dataclasses.fields(cls))
        return cls(**{name: content[name] for name in names if name in content})
