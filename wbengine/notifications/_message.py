"""Messages: groups of events with a number and examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final

from wbengine._text import terminal_text
from wbengine.notifications import _event
from wbengine.notifications._event import Event
from wbengine.views import _formatting

__all__ = ["SCHEMA", "Group", "Message", "group_events"]

SCHEMA: Final = "wbengine/notification/1"
MAX_GROUPS: Final = 20
MAX_TITLE_LENGTH: Final = 150

#: Singular and plural in titles.
_NOUNS: Final[Mapping[str, tuple[str, str]]] = {
    _event.FLOW_FAILED: ("flow failed", "flows failed"),
    _event.FLOW_RECOVERED: ("flow succeeded again", "flows succeeded again"),
    _event.FLOW_BLOCKED: ("flow is blocked by its code", "flows are blocked by their code"),
    _event.FLOW_TRASHED: ("flow cannot be created", "flows cannot be created"),
    _event.UNDO_INCOMPLETE: ("flow is not undone completely", "flows are not undone completely"),
    _event.WORKER_LOST: ("flow lost a worker", "flows lost a worker"),
    _event.BACKLOG: ("backlog of flows", "backlogs of flows"),
    _event.SCHEDULE_MISSED: ("firing of a schedule is missing", "firings of schedules are missing"),
    _event.TEST: ("test message", "test messages"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """Events of one kind and name.

    :ivar name: name of the flow or schedule; None if the events have several names.
    :ivar events: all events, or the first ones as examples.
    """

    kind: str
    name: str | None
    count: int
    events: tuple[Event, ...]

    @property
    def title(self) -> str:
        counted = _formatting.count(self.count, *_NOUNS[self.kind])
        return counted if self.name is None else f"{counted}: {self.name}"


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """A notification for one destination.

    :ivar id: the same when the message is sent again.
    :ivar dashboard: URL of the dashboard, or None.
    """

    id: str
    at: float
    groups: tuple[Group, ...]
    dashboard: str | None = None

    @property
    def count(self) -> int:
        return sum(group.count for group in self.groups)

    @property
    def events(self) -> list[Event]:
        """The events of all groups by time."""
        events = (event for group in self.groups for event in group.events)
        return sorted(events, key=lambda event: (event.at, event.id))

    @property
    def title(self) -> str:
        """One line without control characters."""
        title = "; ".join(group.title for group in self.groups)
        title = terminal_text.visible(" ".join(title.split()))
        return title if len(title) <= MAX_TITLE_LENGTH else f"{title[: MAX_TITLE_LENGTH - 3]}..."

    @property
    def text(self) -> str:
        """Several lines of text."""
        lines = [line for group in self.groups for line in (*_lines(group), "")]
        if self.dashboard is not None:
            lines.append(f"Dashboard: {self.dashboard}")
        return terminal_text.visible("\n".join(lines).rstrip("\n"), lines=True) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Return the message as the JSON object that webhooks receive."""
        return {
            "schema": SCHEMA,
            "id": self.id,
            "time": _formatting.iso(self.at),
            "title": self.title,
            "count": self.count,
            "dashboard": self.dashboard,
            "groups": [
                {
                    "kind": group.kind,
                    "name": group.name,
                    "count": group.count,
                    "events": [event.to_dict() for event in group.events],
                }
                for group in self.groups
            ],
        }

    def to_note(self) -> dict[str, Any]:
        """Return the stored form."""
        return {**self.to_dict(), "at": self.at}

    @classmethod
    def from_note(cls, content: Mapping[str, Any]) -> Message:
        groups = tuple(
            Group(
                each["kind"],
                each["name"],
                each["count"],
                tuple(Event.from_dict(event) for event in each["events"]),
            )
            for each in content["groups"]
        )
        return cls(content["id"], content["at"], groups, content["dashboard"])


def group_events(events: Iterable[Event], max_examples: int | None) -> tuple[Group, ...]:
    """Return groups by kind and name, the largest first.

    Above `MAX_GROUPS`, the smallest groups of a kind are one group without a name.

    :param max_examples: number of events that a group contains; None: all.
    """
    by_name: dict[tuple[str, str | None], list[Event]] = {}
    for event in events:
        by_name.setdefault((event.kind, event.name), []).append(event)
    ordered = sorted(by_name, key=lambda key: (-len(by_name[key]), str(key)))
    if len(ordered) > MAX_GROUPS:
        for key in ordered[MAX_GROUPS - len(_NOUNS) :]:
            by_name.setdefault((key[0], None), []).extend(by_name.pop(key))
    return tuple(
        Group(kind, name, len(group), tuple(group[:max_examples]))
        for (kind, name), group in sorted(by_name.items(), key=lambda item: -len(item[1]))
    )


def _lines(group: Group) -> Iterable[str]:
    yield group.title
    for event in group.events:
        subject = event.flow or event.name
        parts = (_formatting.iso(event.at), subject, event.reason, event.worker)
        yield "  " + "  ".join(part for part in parts if part)
        if event.url is not None:
            yield f"    {event.url}"
    if group.count > len(group.events):
        yield f"  ... and {group.count - len(group.events):,} more"
