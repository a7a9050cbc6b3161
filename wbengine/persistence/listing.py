"""Flows in short, page by page, for whoever looks for one."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from wbengine import states

__all__ = ["LIMIT", "FlowRow", "Page", "Place", "Query"]

#: So many flows are on a page.
LIMIT: Final = 50


class FlowRow(NamedTuple):
    """What a list tells of a flow.

    `state` is PENDING also before anybody ran it.  `created` and `updated` (the last write) are in
    unix seconds, None where nobody knows.  `counts` say how many of its tasks are in which state.
    `lease` is the owner that runs it (`owners.in_words` tells people who that is), or None.
    `error` says, in one line, why it is in FAILURE or REVERTED (None: nobody knows).
    """

    uuid: str
    name: str
    book_uuid: str
    book_name: str
    state: str
    created: float | None
    updated: float | None
    counts: Mapping[str, int]
    lease: str | None
    error: str | None


class Page(NamedTuple):
    """Some flows; `after` is where the next page begins (None: there is none)."""

    flows: Sequence[FlowRow]
    after: str | None


class Place(NamedTuple):
    """Where a flow is among all, in the order of their creation."""

    created: float
    tie: str | int

    def __str__(self) -> str:
        return json.dumps(list(self))

    @classmethod
    def parse(cls, text: str) -> Place:
        """:raises ValueError: this is no place that a page told of."""
        try:
            created, tie = json.loads(text)
            return cls(float(created), tie if isinstance(tie, int) else str(tie))
        except (ValueError, TypeError):
            raise ValueError(f"after={text!r:.80} is not what a page told") from None


@dataclass(frozen=True, slots=True)
class Query:
    """Which flows are wanted, in which order."""

    states: Collection[str] | None = None
    name: str | None = None
    since: float | None = None
    book: str | None = None
    uuid: str | None = None
    newest_first: bool = True
    limit: int = LIMIT
    after: Place | None = None

    def __post_init__(self) -> None:
        if isinstance(self.states, str):
            raise TypeError(f"states is a collection of states, not {self.states!r}")
        for state in self.states or ():
            states.check_known("state of a flow", state, states.FLOW_STATES)
        if isinstance(self.limit, bool) or not isinstance(self.limit, int) or self.limit < 1:
            raise ValueError(f"limit is a number of flows from 1 on, not {self.limit!r}")

    def wants_state(self, state: str | None) -> bool:
        return self.states is None or (state or states.PENDING) in self.states

    def wants(self, uuid: str, name: str) -> bool:
        """Whether a flow of that name may be among them, whatever else it is."""
        return (self.name is None or self.name in name) and (
            self.uuid is None or uuid.startswith(self.uuid)
        )

    def wants_place(self, place: Place) -> bool:
        """Whether a flow that is there was created late enough, and is on this page or later."""
        if self.since is not None and place.created < self.since:
            return False
        if self.after is None:
            return True
        return place < self.after if self.newest_first else place > self.after
