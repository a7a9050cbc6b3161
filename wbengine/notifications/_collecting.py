"""Collection of the events of a store that a destination has not received."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Final
from urllib import parse

from wbengine import exceptions, states
from wbengine._security import masking
from wbengine.notifications import _event
from wbengine.notifications._event import Event
from wbengine.notifications._progress import Progress
from wbengine.notifications._reading import (
    BLOCKED,
    LOST,
    SOURCES,
    TRASHED,
    EventReader,
    FlowChange,
)
from wbengine.notifications._selection import Selection
from wbengine.persistence import base
from wbengine.schedules import _ticks
from wbengine.schedules._store import Entry, Schedules
from wbengine.types import codec
from wbengine.views import _formatting, redaction

__all__ = ["Collector"]

#: A row is stored after the time in it. Rows are read again for this time, which is longer than a
#: transaction of the store can wait.
OVERLAP_SECONDS: Final = 120.0
#: Type of the exception in the reason of a flow that failed because a worker was lost.
_WORKER_LOST: Final = exceptions.WorkerLost.__name__
_KEY_LENGTH: Final = 13
#: Kinds of events whose reason is the error of a flow.
_WITH_ERRORS: Final = (_event.FLOW_FAILED, _event.WORKER_LOST, _event.UNDO_INCOMPLETE)
_MAX_REMAINING: Final = 3


class Collector:
    """Collects events and notes them in the progress of a destination.

    :param schedules: the schedules of the store; None: they are not examined.
    :param dashboard_url: URL of the dashboard without a slash at its end, or None.
    :param shows_errors: whether events contain masked messages of errors, not only their types.
    :param quiet_seconds: time without a failure after which a name of flows has recovered.
    """

    def __init__(
        self,
        reader: EventReader,
        schedules: Schedules | None,
        selection: Selection,
        *,
        dashboard_url: str | None = None,
        shows_errors: bool = True,
        quiet_seconds: float = 0.0,
    ) -> None:
        self._reader = reader
        self._schedules = schedules
        self._selection = selection
        self._dashboard_url = dashboard_url
        self._shows_errors = shows_errors
        self._quiet_seconds = quiet_seconds
        #: Number of events of the latest `collect` whose kind is not selected, by kind.
        self.not_selected = Counter[str]()

    def collect(self, progress: Progress, now: float, limit: int) -> list[Event]:
        """Return new events, at most about `limit`, and advance `progress`.

        :param now: the time of the store, read before this call.
        """
        events: list[Event] = []
        self.not_selected.clear()
        before = dict.fromkeys(SOURCES, now) | progress.since
        for source in SOURCES:
            progress.since[source] = now
            since = max(before[source] - OVERLAP_SECONDS, progress.started)
            for change in self._reader.changes(source, since):
                if len(events) >= limit:
                    progress.since[source] = change.at
                    break
                events += self._new(progress, self._events_of(source, change), change.name)
        self._note_successes(progress, min(before.values()) - OVERLAP_SECONDS)
        if len(events) < limit:  # Otherwise, there may be later failures.
            events += self._new(progress, self._recovered(progress, now))
        events += self._backlog(progress, now)
        events += self._overdue(progress, now)
        progress.forget_before(min(progress.since.values()) - 2 * OVERLAP_SECONDS)
        return events

    def _new(self, progress: Progress, events: Iterator[Event], name: str = "") -> list[Event]:
        """Return the selected events that are not in the progress, and note all.

        :param name: the stored name of their flow; that of the events is masked.
        """
        new_events = []
        for event in events:
            key = event.id[:_KEY_LENGTH]
            if key in progress.seen:
                continue
            progress.seen[key] = event.at
            if event.kind == _event.FLOW_FAILED:
                progress.note_failing(name, event.at)
            if self._selection.includes(event.kind):
                new_events.append(event)
            else:
                self.not_selected[event.kind] += 1
        return new_events

    def _events_of(self, source: str, change: FlowChange) -> Iterator[Event]:
        if not self._selection.matches_flow(change.name, change.tags):
            return
        if source == LOST:
            yield self._event(_event.WORKER_LOST, change, change.at)
        elif source == BLOCKED:
            yield self._event(_event.FLOW_BLOCKED, change, change.at)
        elif source == TRASHED:
            yield self._event(_event.FLOW_TRASHED, change, change.at)
        elif change.is_undone:  # Its run did not fail.
            if change.state == states.FAILURE or change.remaining:
                yield self._event(_event.UNDO_INCOMPLETE, change, change.entered_at)
        elif change.error is not None and not (
            change.is_reversion or (change.is_cancelled and change.state == states.REVERTED)
        ):
            yield self._event(_event.FLOW_FAILED, change, change.entered_at)
            if change.error.split(": ")[1:2] == [_WORKER_LOST]:
                yield self._event(_event.WORKER_LOST, change, change.entered_at)

    def _note_successes(self, progress: Progress, since: float) -> None:
        if not (progress.failing and self._selection.includes(_event.FLOW_RECOVERED)):
            return
        for name, at in self._reader.latest_successes(list(progress.failing), since):
            if self._selection.tags:
                times = (
                    change.at
                    for change in self._reader.successes(name, since)
                    if self._selection.matches_flow(name, change.tags)
                )
                at = max(times, default=0.0)
            if at:
                progress.note_success(name, at)

    def _recovered(self, progress: Progress, now: float) -> Iterator[Event]:
        """Yield the failed flows that succeeded; for a name without one, its latest success."""
        for name, failing in list(progress.failing.items()):
            if failing.success <= failing.latest or now < failing.latest + self._quiet_seconds:
                continue
            del progress.failing[name]
            changes = [
                change
                for change in self._reader.repaired(name, failing.first)
                if self._selection.matches_flow(name, change.tags)
            ]
            latest = None if changes else self._reader.success(name, failing.success)
            for change in changes if latest is None else [latest]:
                yield self._event(_event.FLOW_RECOVERED, change, change.entered_at)

    def _backlog(self, progress: Progress, now: float) -> Iterator[Event]:
        limit = self._selection.backlog_after
        if not self._selection.includes(_event.BACKLOG):
            return
        # A backlog ends below half of the limit, so that an age near the limit is one event.
        oldest = self._reader.oldest_pending(
            now - (limit if progress.backlog is None else limit / 2)
        )
        if oldest is None:
            progress.backlog = None
        elif progress.backlog is None:
            progress.backlog = oldest.uuid
            yield Event(
                id=_event.event_id(_event.BACKLOG, oldest.uuid),
                kind=_event.BACKLOG,
                at=oldest.created + limit,
                name=masking.masked(oldest.name),
                flow=oldest.uuid,
                state=states.PENDING,
                reason=f"the oldest flow waits since {_formatting.iso(oldest.created)}",
                tags=redaction.tags(oldest.tags, redaction.Redactor()),
                url=self._page("flows", oldest.uuid),
            )

    def _overdue(self, progress: Progress, now: float) -> Iterator[Event]:
        if self._schedules is None or not self._selection.includes(_event.SCHEDULE_MISSED):
            return
        overdue: list[str] = []
        for _, entries in self._schedules.due(-self._selection.missed_after):
            for entry in entries:
                if entry.wanted is not None or self._waits_for_flow(self._schedules, entry):
                    continue
                key = _event.event_id(_event.SCHEDULE_MISSED, entry.name, entry.next_tick)
                overdue.append(key)
                if key not in progress.overdue:
                    yield self._missed(key, entry)
        progress.overdue = overdue

    def _waits_for_flow(self, schedules: Schedules, entry: Entry) -> bool:
        """Return True if the policy of the schedule delays the firing until a flow has ended."""
        waits = not entry.unreadable and entry.schedule.overlap in (_ticks.QUEUE, _ticks.CANCEL)
        return (
            waits and entry.last_flow is not None and bool(schedules.unfinished([entry.last_flow]))
        )

    def _missed(self, key: str, entry: Entry) -> Event:
        trouble = "" if entry.trouble is None else f": {masking.masked(entry.trouble)}"
        if not self._shows_errors:
            trouble = trouble.partition(": ")[0]
        return Event(
            id=key,
            kind=_event.SCHEDULE_MISSED,
            at=entry.due + self._selection.missed_after,
            name=entry.name,
            reason=f"the firing for {_ticks.iso(entry.next_tick)} is missing{trouble}",
            url=self._page("schedules"),
        )

    def _event(self, kind: str, change: FlowChange, identity: float) -> Event:
        redactor = redaction.Redactor()
        reasons = {
            _event.FLOW_BLOCKED: "its code differs from that of its recorded steps:"
            f" {change.code or 'no version'}",
            _event.FLOW_TRASHED: "the log of the conductor contains the reason",
        }
        return Event(
            id=_event.event_id(kind, change.uuid, repr(identity)),
            kind=kind,
            at=change.at,
            name=redactor.text(change.name),
            flow=change.uuid,
            state=change.state if kind != _event.FLOW_BLOCKED else states.BLOCKED,
            reason=reasons.get(kind) or _type_of(change.error) or _remaining(change, redactor),
            tags=redaction.tags(change.tags, redactor),
            url=self._page("flows", change.uuid),
        )

    def detailed(self, event: Event, connection: base.Connection) -> Event:
        """Return an event with the error of its flow, masked as on pages, and the lost worker."""
        if event.flow is None or event.kind not in _WITH_ERRORS:
            return event
        reason, worker = event.reason, None
        if self._shows_errors:
            with contextlib.suppress(exceptions.NotFound):
                row = connection.get_row(event.flow)
                if row.state == event.state and row.error is not None:
                    redactor = redaction.redactor_for(connection, row, redaction.Redactor())
                    reason = redaction.error_line(row, redactor)
        if event.kind == _event.WORKER_LOST:
            worker = _lost_worker(connection, event.flow)
        return dataclasses.replace(event, reason=reason, worker=worker)

    def _page(self, *path: str) -> str | None:
        if self._dashboard_url is None:
            return None
        return "/".join([self._dashboard_url, *(parse.quote(part, safe="") for part in path)])


def _type_of(error: str | None) -> str | None:
    """Return the name of the atom and the type of its exception, or what of these is known."""
    if error is None:
        return None
    parts = error.split(": ")
    is_of_atom = len(parts) > 1 and parts[1].isidentifier()
    return masking.masked(": ".join(parts[: 2 if is_of_atom else 1]))


def _remaining(change: FlowChange, redactor: redaction.Redactor) -> str | None:
    """Return which effects remain after an undo, or None."""
    if not change.remaining:
        return None
    more = "" if len(change.remaining) <= _MAX_REMAINING else " and more"
    return redactor.text(f"effects remain: {', '.join(change.remaining[:_MAX_REMAINING])}{more}")


def _lost_worker(connection: base.Connection, flow: str) -> str | None:
    try:
        with codec.unknown_classes_as_text():
            incidents = [
                incident
                for atom in connection.get_atoms_for_flow(flow)
                for incident in atom.incidents
                if incident.event == states.WORKER_LOST and incident.worker is not None
            ]
    except (exceptions.NotFound, exceptions.CorruptRecord):
        return None
    return max(incidents, key=lambda incident: incident.at).worker if incidents else None
