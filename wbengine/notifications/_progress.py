"""The note of a destination in the store: its progress, and the message that is sent next."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from wbengine.notifications._message import Message

__all__ = ["HOOK", "Failing", "Progress", "destination_names", "duty_name"]

#: Name of the destination of the setting `hook`.
HOOK: Final = "hook"
_VERSION: Final = 2
#: Names of flows whose success is awaited. The earliest failure is dropped first.
_MAX_FAILING: Final = 1000


def duty_name(destination: str) -> str:
    """Return the name of the work for a destination, of which one process at a time has a claim."""
    return f"notify {destination}"


def destination_names(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of all destinations, without checking the settings."""
    to = settings.get("to")
    names = tuple(to) if isinstance(to, Mapping) else ()
    return (*names, HOOK) if settings.get("hook") is not None else names


class Failing(NamedTuple):
    """The times of flows with the same name that fail.

    :ivar first: first failure after the latest recovery.
    :ivar latest: latest failure.
    :ivar success: latest success; 0: none.
    """

    first: float
    latest: float
    success: float = 0.0


@dataclasses.dataclass(slots=True)
class Progress:
    """The progress of a destination. Times are Unix seconds on the clock of the store.

    :ivar started: time of the first start; earlier events are not sent.
    :ivar since: by source, the time before which all events were collected.
    :ivar seen: ids of the events that were collected, with their times, as long as they can be read
        again.
    :ivar failing: names of flows whose recovery was not reported.
    :ivar overdue: ids of the missing firings that were reported.
    :ivar backlog: uuid of the oldest flow of a backlog that was reported and is not over.
    :ivar outbox: the message that is to be sent before others are collected.
    :ivar failures: number of failed attempts to send it; `failing_since`, `retry_at` and `error`
        are about them.
    :ivar next_at: time before which no further message is sent.
    :ivar stored_at: time at which this was written.
    """

    started: float = 0.0
    since: dict[str, float] = dataclasses.field(default_factory=dict)
    seen: dict[str, float] = dataclasses.field(default_factory=dict)
    failing: dict[str, Failing] = dataclasses.field(default_factory=dict)
    overdue: list[str] = dataclasses.field(default_factory=list)
    backlog: str | None = None
    outbox: Message | None = None
    failures: int = 0
    failing_since: float | None = None
    retry_at: float = 0.0
    error: str | None = None
    next_at: float = 0.0
    sent_at: float | None = None
    stored_at: float = 0.0

    @classmethod
    def from_note(cls, note: Mapping[str, Any]) -> Progress | None:
        """Return the progress in a note; None if there is none."""
        if note.get("version") != _VERSION:
            return None
        names = {field.name for field in dataclasses.fields(cls)}
        progress = cls(**{name: value for name, value in note.items() if name in names})
        progress.failing = {name: Failing(*each) for name, each in progress.failing.items()}
        if note.get("outbox") is not None:
            progress.outbox = Message.from_note(note["outbox"])
        return progress

    def to_note(self) -> dict[str, Any]:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        outbox = None if self.outbox is None else self.outbox.to_note()
        return {**fields, "outbox": outbox, "version": _VERSION}

    def note_failing(self, name: str, at: float) -> None:
        failing = self.failing.get(name, Failing(at, at))
        self.failing[name] = failing._replace(
            first=min(at, failing.first), latest=max(at, failing.latest)
        )
        while len(self.failing) > _MAX_FAILING:
            del self.failing[min(self.failing, key=lambda each: self.failing[each].latest)]

    def note_success(self, name: str, at: float) -> None:
        """Note the latest success of a name that fails."""
        self.failing[name] = self.failing[name]._replace(success=at)

    def forget_before(self, at: float) -> None:
        self.seen = {key: time for key, time in self.seen.items() if time >= at}
