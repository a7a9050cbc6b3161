"""What happened to a flow, one moment after the other, and page by page."""

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
from wbengine.persistence.history import Attempt
from wbengine.views import formatting
from wbengine.views.redaction import Redactor

__all__ = [
    "ATOM",
    "EVENT_SCHEMA",
    "Event",
    "EventPage",
    "FLOW",
    "INCIDENT",
    "LIMIT",
    "MOST",
    "Moment",
    "SCHEMA",
    "Teller",
    "moments_of",
    "page",
]

EVENT_SCHEMA: Final = "wbengine/event/1"
FLOW: Final = "flow"
ATOM: Final = "atom"
INCIDENT: Final = "incident"

_BUSY: Final = frozenset({states.RUNNING, states.REVERTING})


@dataclass(frozen=True, slots=True)
class Event:
    """The flow, or an atom of it, entered a state, or told its progress; or (`kind` 'incident')
    the worker that had an atom was lost, or the atom was sent again: `state` says which.

    `at` is in unix seconds, None where nobody knows.  `error` is what it failed with, or why the
    flow entered its state, in one line.  `executions` and `reversions` count those of the atom up
    to this attempt, itself included.  Of what was sent again `worker` has begun it since, and
    `lost_worker` had it before.  `item` is the index of an item of a Map.
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
        return {"schema": EVENT_SCHEMA, **formatting.as_dict(self)}


class Moment(NamedTuple):
    """What happened to an atom, or (`atom` None) to the flow, as its records have it: unmasked.

    `attempt` is the one that began or ended; None: it only entered a state.
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
        """It, as people look at it."""

        def text(said: str | None) -> str | None:
            return None if said is None else redactor.text(said)

        atom, attempt, incident = self.atom, self.attempt, self.incident
        if atom is None:
            name = redactor.text(flow.name)
            return Event(self.at, FLOW, name, flow.uuid, self.state, error=text(self.why))
        one = atom if attempt is None else attempt
        found = Event(
            self.at,
            ATOM,
            redactor.text(atom.name),
            atom.uuid,
            self.state,
            one.attempt,
            one.action,
            None if attempt is None else text(attempt.worker),
            progress,
            None if attempt is None or self.state in _BUSY else text(attempt.error),
            one.executions,
            one.reversions,
        )
        if incident is None:
            return found
        return dataclasses.replace(
            found,
            kind=INCIDENT,
            attempt=incident.attempt,
            worker=text(incident.worker),
            error=None,
            lost_worker=text(incident.lost),
            item=None if incident.item < 0 else incident.item,
        )


class _Reported(NamedTuple):
    """What was told of an atom last: its attempt, whether also how that ended, its state."""

    attempt: int = 0
    ended: bool = True
    state: str = states.PENDING
    progress: float | None = None
    incidents: Collection[Any] = ()

    def then(self, atom: models.AtomDetail, state: str, incidents: Collection[Any]) -> _Reported:
        """After all was told that its record says now, and these incidents."""
        number, ended = self.attempt, self.ended
        last = atom.last_attempt
        if last is not None and last.attempt >= number:
            ended = last.state is not None or (ended and last.attempt == number)
            number = last.attempt
        return _Reported(number, ended, state, atom.progress, incidents)


_NOTHING: Final = _Reported()


def moments_of(
    atom: models.AtomDetail, reported: _Reported = _NOTHING, now: float | None = None
) -> Iterator[Moment]:
    """What its record says has happened to an atom since something was told of it, in that order.

    What has no time of its own happened `now`, or when what was before it did: whoever was lost
    told nobody when an attempt ended, but who looks on sees it given up.
    """
    number, ended, last, at = reported.attempt, reported.ended, reported.state, None
    attempts = atom.all_attempts
    for attempt, following in itertools.zip_longest(attempts, attempts[1:]):
        if attempt.attempt < number or (attempt.attempt == number and ended):
            continue
        if attempt.attempt > number:
            last = states.REVERTING if attempt.action == "revert" else states.RUNNING
            at = attempt.submitted if attempt.submitted is not None else attempt.started
            yield Moment(at, last, atom, attempt)
        number, ended = attempt.attempt, attempt.state is not None
        if attempt.state is not None:
            last = attempt.state
            at = _ended(attempt, following, now)
            yield Moment(at, last, atom, attempt)
    state = atom.state or states.PENDING
    if state != last:
        yield Moment(at if now is None else now, state, atom)


def incidents_of(atom: models.AtomDetail) -> Iterator[Moment]:
    """The workers that were lost with an atom, and the times that it was sent again."""
    if atom.incidents:
        attempts = {each.attempt: each for each in atom.all_attempts}
        for each in atom.incidents:
            yield Moment(each.at, each.event, atom, attempts.get(each.attempt), None, each)


def _is_open(incident: models.Incident, atom: models.AtomDetail) -> bool:
    """Whether it may yet be heard who has begun what was sent again."""
    if incident.event != states.RESENT or incident.worker is not None:
        return False
    return atom.state in _BUSY and incident.attempt == atom.attempt


def _ended(attempt: Attempt, following: Attempt | None, now: float | None) -> float | None:
    """When an attempt ended, as far as anybody knows."""
    if attempt.ended is not None:
        return attempt.ended
    if now is None:
        return attempt.started if attempt.started is not None else attempt.submitted
    given_up = None if following is None else following.submitted
    return now if given_up is None else min(now, given_up)


class Teller:
    """Tells what is new in records, each thing once; remembers of each atom what was told last."""

    def __init__(self) -> None:
        self._reported: dict[str, _Reported] = {}
        self._changes: set[models.Change] = set()

    def tell(
        self,
        flow: models.FlowDetail,
        atoms: Iterable[models.AtomDetail],
        redactor: Redactor,
        now: float | None,
    ) -> list[Event]:
        """What is new in `flow` and in these atoms of it, in the order in which it happened."""
        found = [moment.event(flow, redactor) for moment in self._of_flow(flow)]
        for atom in atoms:
            if atom.name != models.INJECTOR:
                found += self._of_atom(flow, atom, redactor, now)
        # What has no time of its own comes after what is told with it.
        latest = max((event.at for event in found if event.at is not None), default=0.0)
        return sorted(found, key=lambda event: latest if event.at is None else event.at)

    def _of_flow(self, flow: models.FlowDetail) -> Iterator[Moment]:
        for change in flow.history:
            if change not in self._changes:
                self._changes.add(change)
                yield Moment(change.at, change.state, None, None, change.why)
        self._changes.intersection_update(flow.history)

    def _of_atom(
        self,
        flow: models.FlowDetail,
        atom: models.AtomDetail,
        redactor: Redactor,
        now: float | None,
    ) -> Iterator[Event]:
        reported = self._reported.get(atom.uuid, _NOTHING)
        moment = None
        for moment in moments_of(atom, reported, now):
            yield moment.event(flow, redactor)
        state = atom.state or states.PENDING
        if moment is None or moment.attempt is not None:
            progress = atom.progress
            if state in _BUSY and progress is not None and progress != reported.progress:
                yield Moment(now, state, atom, atom.last_attempt).event(flow, redactor, progress)
        known: dict[Any, None] = {}
        for each in incidents_of(atom):
            assert each.incident is not None
            key = each.incident._replace(worker=None)
            if key in reported.incidents:
                known[key] = None
            # Each is told once, with both workers, or as it is where they are told from records.
            elif now is None or not _is_open(each.incident, atom):
                known[key] = None
                yield each.event(flow, redactor)
        self._reported[atom.uuid] = reported.then(atom, state, known)


SCHEMA: Final = "wbengine/events/1"

#: Events on a page: where nobody says how many, and at most.
LIMIT: Final = 500
MOST: Final = 5000


class _Place(NamedTuple):
    """Where an event stands among all of its flow: by its time, then as the records have it."""

    at: float
    atom: int
    number: int

    @classmethod
    def read(cls, text: str) -> _Place:
        """:raises ValueError: no page told this."""
        at, atom, number = text[:100].split("_")
        return cls(float(at), int(atom), int(number))

    def __str__(self) -> str:
        return f"{self.at!r}_{self.atom}_{self.number}"


@dataclass(frozen=True, slots=True)
class EventPage:
    """Some events; `after` is what the next page is asked for with, None: there is none."""

    events: tuple[Event, ...]
    after: str | None

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **formatting.as_dict(self)}


def page(
    detail: models.FlowDetail,
    redactor: Redactor,
    *,
    limit: int = LIMIT,
    after: str | None = None,
    latest_first: bool = False,
) -> EventPage:
    """What happened to a flow, as far as its records remember it, from `after` on.

    `redactor` knows the secrets of the flow.  Costs O(atoms), but only the page is
    masked.

    :raises ValueError: a page cannot have so many events, or `after` is not what a page told.
    """
    if not 1 <= limit <= MOST:
        raise ValueError(f"limit={limit} is no number from 1 to {MOST}")
    begin = None if after is None else _begin(after)
    there = _all(detail)
    if begin is not None and latest_first:
        there = (each for each in there if each[0] < begin)
    elif begin is not None:
        there = (each for each in there if each[0] > begin)
    choose = heapq.nlargest if latest_first else heapq.nsmallest
    found = choose(limit + 1, there)  # no two are at one place
    shown = found[:limit]
    return EventPage(
        tuple(moment.event(detail, redactor) for _, moment in shown),
        str(shown[-1][0]) if len(found) > limit else None,
    )


def _begin(after: str) -> _Place:
    try:
        return _Place.read(after)
    except ValueError:
        raise ValueError(f"after={after!r:.40} is not what a page of events told") from None


def _all(detail: models.FlowDetail) -> Iterator[tuple[_Place, Moment]]:
    for number, change in enumerate(detail.history):
        moment = Moment(change.at, change.state, None, None, change.why)
        yield _Place(change.at, -1, number), moment
    for index, atom in enumerate(detail):
        if atom.name != models.INJECTOR:
            there = itertools.chain(moments_of(atom), incidents_of(atom))
            for number, moment in enumerate(there):
                # What has no time at all is told last.
                at = math.inf if moment.at is None else moment.at
                yield _Place(at, index, number), moment
