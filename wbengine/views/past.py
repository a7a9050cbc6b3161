"""What happened to a flow, page by page: only what is on a page is made of its records."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from wbengine.persistence import models
from wbengine.views import events
from wbengine.views.masking import Masker

__all__ = ["LIMIT", "MOST", "SCHEMA", "EventPage", "page"]

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

    events: tuple[events.Event, ...]
    after: str | None

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "events": [event.to_dict() for event in self.events],
            "after": self.after,
        }


def page(
    detail: models.FlowDetail,
    masker: Masker,
    *,
    limit: int = LIMIT,
    after: str | None = None,
    latest_first: bool = False,
) -> EventPage:
    """What happened to a flow, as far as its records remember it, from `after` on.

    `masker` knows the secrets of the flow.  Costs O(atoms), but only what is on the page is masked.

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
        tuple(moment.event(detail, masker) for _, moment in shown),
        str(shown[-1][0]) if len(found) > limit else None,
    )


def _begin(after: str) -> _Place:
    try:
        return _Place.read(after)
    except ValueError:
        raise ValueError(f"after={after!r:.40} is not what a page of events told") from None


def _all(detail: models.FlowDetail) -> Iterator[tuple[_Place, events.Moment]]:
    for number, change in enumerate(detail.history):
        moment = events.Moment(change.at, change.state, None, None, change.why)
        yield _Place(change.at, -1, number), moment
    for index, atom in enumerate(detail):
        if atom.name != models.INJECTOR:
            for number, moment in enumerate(events.moments_of(atom)):
                # What has no time at all is told last.
                at = math.inf if moment.at is None else moment.at
                yield _Place(at, index, number), moment
