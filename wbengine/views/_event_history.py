"""Events of a flow in chronological order, and pages of events."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from wbengine import states
from wbengine.persistence import models
from wbengine.persistence._history import Attempt
from wbengine.persistence._step_notes import StepNote
from wbengine.views import _formatting
from wbengine.views._shown_states import OF_RETRY
from wbengine.views.redaction import Redactor

__all__ = [
    "ATOM",
    "DEFAULT_LIMIT",
    "EVENT_SCHEMA",
    "Event",
    "EventCollector",
    "EventPage",
    "FLOW",
    "INCIDENT",
    "MAX_LIMIT",
    "Moment",
    "SCHEMA",
    "moments_of",
    "page",
]

EVENT_SCHEMA: Final = "wbengine/event/1"
FLOW: Final = "flow"
ATOM: Final = "atom"
INCIDENT: Final = "incident"

_RUNNING_STATES: Final = frozenset({states.RUNNING, states.REVERTING})


@dataclass(frozen=True, slots=True)
class Event:
    """A state change or progress report of a flow or atom, or an incident.

    An incident is the loss of a worker or the resend of a request; `state` names it.

    :ivar at: Unix time; None if unknown.
    :ivar error: the failure in one line, or the reason why the flow entered its state.
    :ivar executions: number of executions of the atom up to this attempt.
    :ivar reversions: number of reversions of the atom up to this attempt.
    :ivar worker: after a resend, the worker that received the request.
    :ivar lost_worker: after a resend, the worker that had the request before.
    :ivar item: index of an item of a Map.
    """

    at: float | None
    kind: str
    name: str
    uuid: str
    state: str
    attempt: int = 0
    action: str | None = None
    worker: str | None = None
    progress: float | None = None
    error: str | None = None
    executions: int = 0
    reversions: int = 0
    lost_worker: str | None = None
    item: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return {"schema": EVENT_SCHEMA, **_formatting.as_dict(self)}


class Moment(NamedTuple):
    """An event of an atom or, if `atom` is None, of the flow, before masking.

    :ivar attempt: attempt that started or ended; None for a change of only the state.
    """

    at: float | None
    state: str
    atom: models.AtomDetail | None
    attempt: Attempt | None = None
    why: str | None = None
    incident: models.Incident | None = None

    def event(
        self, flow: models.FlowDetail, redactor: Redactor, progress: float | None = None
    ) -> Event:
        """Return the masked event."""

        def text(value: str | None) -> str | None:
            return None if value is None else redactor.text(value)

        atom, attempt, incident = self.atom, self.attempt, self.incident
        if atom is None:
            name = redactor.text(flow.name)
            return Event(self.at, FLOW, name, flow.uuid, self.state, error=text(self.why))
        counters = atom if attempt is None else attempt
        event = Event(
            self.at,
            ATOM,
            redactor.text(atom.meta_value(models.OF_TASK) or atom.name),
            atom.uuid,
            self.state,
            counters.attempt,
            counters.action,
            None if attempt is None else text(attempt.worker),
            progress,
            None if attempt is None or self.state in _RUNNING_STATES else text(attempt.error),
            counters.executions,
            counters.reversions,
        )
        if incident is None:
            return event
        return dataclasses.replace(
            event,
            kind=INCIDENT,
            attempt=incident.attempt,
            worker=text(incident.worker),
            error=None,
            lost_worker=text(incident.lost),
            item=None if incident.item < 0 else incident.item,
        )


class _Reported(NamedTuple):
    """The last reported values of an atom. `ended`: whether the end of the attempt was reported."""

    attempt: int = 0
    ended: bool = True
    state: str = states.PENDING
    progress: float | None = None
    incidents: Collection[Any] = ()

    def updated(self, atom: models.AtomDetail, state: str, incidents: Collection[Any]) -> _Reported:
        number, ended = self.attempt, self.ended
        last = atom.last_attempt
        if last is not None and last.attempt >= number:
            ended = last.state is not None or (ended and last.attempt == number)
            number = last.attempt
        return _Reported(number, ended, state, atom.progress, incidents)


_NOT_REPORTED: Final = _Reported()


def moments_of(
    atom: models.AtomDetail, reported: _Reported = _NOT_REPORTED, now: float | None = None
) -> Iterator[Moment]:
    """Yield the events of an atom after those in `reported`, in order.

    If the worker of an attempt was lost, its end is not stored. Such an attempt ends at `now` or
    when the next attempt was submitted, whichever is earlier. Without `now`, an event without a
    time gets the time of the previous event. For a retry controller that was created for
    `Task.retries`, only states in `OF_RETRY` are included.
    """
    moments = _all_moments_of(atom, reported, now)
    if atom.meta_value(models.OF_TASK) is None:
        yield from moments
    else:
        yield from (moment._replace(at=now) for moment in moments if moment.state in OF_RETRY)


def _all_moments_of(
    atom: models.AtomDetail, reported: _Reported, now: float | None
) -> Iterator[Moment]:
    number, ended, last, at = reported.attempt, reported.ended, reported.state, None
    attempts = atom.all_attempts
    for attempt, following in itertools.zip_longest(attempts, attempts[1:]):
        if attempt.attempt < number or (attempt.attempt == number and ended):
            continue
        if attempt.attempt > number:
            last = states.REVERTING if attempt.action == "revert" else states.RUNNING
            at, worker = _start_of(atom, attempt)
            yield Moment(at, last, atom, attempt._replace(worker=worker))
        number, ended = attempt.attempt, attempt.state is not None
        if attempt.state is not None:
            last = attempt.state
            at = _end_of(attempt, following, now)
            yield Moment(at, last, atom, attempt)
    state = atom.state or states.PENDING
    if state != last:
        note = StepNote.of(atom) if atom.is_step and state == states.REVERTED else None
        stored = None if note is None else note.reverted
        if stored is None:
            stored = atom.ended if at is None else at
        yield Moment(stored if now is None else now, state, atom)


def incidents_of(atom: models.AtomDetail) -> Iterator[Moment]:
    if atom.incidents:
        attempts = {attempt.attempt: attempt for attempt in atom.all_attempts}
        for incident in atom.incidents:
            yield Moment(
                incident.at, incident.event, atom, attempts.get(incident.attempt), None, incident
            )


def _is_open(incident: models.Incident, atom: models.AtomDetail) -> bool:
    """Return whether the new worker of a resent request is unknown, but may become known."""
    if incident.event != states.RESENT or incident.worker is not None:
        return False
    return atom.state in _RUNNING_STATES and incident.attempt == atom.attempt


def _start_of(atom: models.AtomDetail, attempt: Attempt) -> tuple[float | None, str | None]:
    """Return the start of an attempt and its worker, or the submission until it has started.

    `attempt` has worker and start of the latest copy of its request. After a resend, return the
    submission, and the worker of the first copy.
    """
    for incident in atom.incidents:
        is_of_attempt = incident.attempt == attempt.attempt and incident.item < 0
        if is_of_attempt and incident.event == states.RESENT:
            return attempt.submitted, incident.lost
    return attempt.submitted if attempt.started is None else attempt.started, attempt.worker


def _end_of(attempt: Attempt, following: Attempt | None, now: float | None) -> float | None:
    """Return the end of an attempt, estimated if it is not stored."""
    if attempt.ended is not None:
        return attempt.ended
    if now is None:
        return attempt.started if attempt.started is not None else attempt.submitted
    given_up = None if following is None else following.submitted
    return now if given_up is None else min(now, given_up)


class EventCollector:
    """Collector of new events in records. It returns each event once. Not thread-safe."""

    def __init__(self) -> None:
        self._reported: dict[str, _Reported] = {}
        self._changes: set[models.Change] = set()

    def collect(
        self,
        flow: models.FlowDetail,
        atoms: Iterable[models.AtomDetail],
        redactor: Redactor,
        now: float | None,
    ) -> list[Event]:
        """Return the new events of `flow` and of these atoms, ordered by time.

        :param now: time of events without a stored time; None if the records are not live.
        """
        events = [moment.event(flow, redactor) for moment in self._flow_moments(flow)]
        for atom in atoms:
            if atom.name != models.INJECTOR:
                events += self._atom_events(flow, atom, redactor, now)
        # Events without a time are placed after the others of the same call.
        latest = max((event.at for event in events if event.at is not None), default=0.0)
        return sorted(events, key=lambda event: latest if event.at is None else event.at)

    def _flow_moments(self, flow: models.FlowDetail) -> Iterator[Moment]:
        changes = (*flow.history, *flow.notes)
        for change in changes:
            if change not in self._changes:
                self._changes.add(change)
                yield Moment(change.at, change.state, None, None, change.why)
        self._changes.intersection_update(changes)

    def _atom_events(
        self,
        flow: models.FlowDetail,
        atom: models.AtomDetail,
        redactor: Redactor,
        now: float | None,
    ) -> Iterator[Event]:
        reported = self._reported.get(atom.uuid, _NOT_REPORTED)
        moment = None
        for moment in moments_of(atom, reported, now):
            yield moment.event(flow, redactor)
        state = atom.state or states.PENDING
        if moment is None or moment.attempt is not None:
            progress = atom.progress
            if state in _RUNNING_STATES and progress is not None and progress != reported.progress:
                yield Moment(now, state, atom, atom.last_attempt).event(flow, redactor, progress)
        reported_incidents: dict[Any, None] = {}
        for incident_moment in incidents_of(atom):
            assert incident_moment.incident is not None
            key = incident_moment.incident._replace(worker=None)
            if key in reported.incidents:
                reported_incidents[key] = None
            # An incident is returned once: when its new worker is known or can no longer
            # become known; without `now`, immediately.
            elif now is None or not _is_open(incident_moment.incident, atom):
                reported_incidents[key] = None
                yield incident_moment.event(flow, redactor)
        self._reported[atom.uuid] = reported.updated(atom, state, reported_incidents)


SCHEMA: Final = "wbengine/events/1"

#: Default and maximum number of events of a page.
DEFAULT_LIMIT: Final = 500
MAX_LIMIT: Final = 5000


class _Position(NamedTuple):
    """Position of an event in its flow: by time, then by the order of the records."""

    at: float
    atom: int
    number: int

    @classmethod
    def parse(cls, text: str) -> _Position:
        """Parse a cursor. Raise ValueError if it is invalid."""
        at, atom, number = text[:100].split("_")
        return cls(float(at), int(atom), int(number))

    def __str__(self) -> str:
        return f"{self.at!r}_{self.atom}_{self.number}"


@dataclass(frozen=True, slots=True)
class EventPage:
    """A page of events. `after` is the cursor of the next page; None on the last page."""

    events: tuple[Event, ...]
    after: str | None

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **_formatting.as_dict(self)}


def page(
    detail: models.FlowDetail,
    redactor: Redactor,
    *,
    limit: int = DEFAULT_LIMIT,
    after: str | None = None,
    latest_first: bool = False,
) -> EventPage:
    """Return a page of the stored events of a flow. Cost: O(atoms); only the page is masked.

    :param redactor: a redactor with the secrets of the flow.
    :param limit: maximum number of events, from 1 to `MAX_LIMIT`.
    :param after: cursor that the previous page returned.
    :raises ValueError: if `limit` or `after` is invalid.
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise ValueError(f"limit must be a number from 1 to {MAX_LIMIT}, got {limit}")
    start = None if after is None else _parse_cursor(after)
    positioned_moments = _positioned_moments(detail)
    if start is not None and latest_first:
        positioned_moments = (
            positioned for positioned in positioned_moments if positioned[0] < start
        )
    elif start is not None:
        positioned_moments = (
            positioned for positioned in positioned_moments if positioned[0] > start
        )
    choose = heapq.nlargest if latest_first else heapq.nsmallest
    chosen = choose(
        limit + 1, positioned_moments
    )  # Positions are unique, so moments are never compared.
    shown = chosen[:limit]
    return EventPage(
        tuple(moment.event(detail, redactor) for _, moment in shown),
        str(shown[-1][0]) if len(chosen) > limit else None,
    )


def _parse_cursor(after: str) -> _Position:
    try:
        return _Position.parse(after)
    except ValueError:
        raise ValueError(
            f"after must be the cursor of a page of events, got {after!r:.40}"
        ) from None


def _positioned_moments(detail: models.FlowDetail) -> Iterator[tuple[_Position, Moment]]:
    for number, change in enumerate((*detail.history, *detail.notes)):
        moment = Moment(change.at, change.state, None, None, change.why)
        yield _Position(change.at, -1, number), moment
    for index, atom in enumerate(detail):
        if atom.name != models.INJECTOR:
            moments = itertools.chain(moments_of(atom), incidents_of(atom))
            for number, moment in enumerate(moments):
                # Events without a time are last.
                at = math.inf if moment.at is None else moment.at
                yield _Position(at, index, number), moment
