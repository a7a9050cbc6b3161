"""Flows in short, page by page, for whoever looks for one."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from wbengine import states

__all__ = ["LIMIT", "FlowRow", "Page", "Place", "Query", "check_tags", "tags_of"]

#: So many flows are on a page.
LIMIT: Final = 50
#: So many tags may a flow have.
MOST_TAGS: Final = 32
_TAG: Final = re.compile(r"[A-Za-z0-9._/-]{1,64}")


def check_tags(tags: object) -> dict[str, str]:
    """Tags of a flow, if they can be some.

    :raises TypeError: this is no dict of texts.
    :raises ValueError: there are too many, or a key or a value is too long or holds what it must
        not.
    """
    if not isinstance(tags, Mapping) or not all(
        isinstance(each, str) for pair in tags.items() for each in pair
    ):
        raise TypeError(f"tags is a dict of texts, not {tags!r:.200}")
    if len(tags) > MOST_TAGS:
        raise ValueError(f"a flow has at most {MOST_TAGS} tags, not {len(tags)}")
    for key, value in tags.items():
        if not _TAG.fullmatch(key):
            raise ValueError(f"tag {key!r:.80}: a key is up to 64 letters, digits and ._/-")
        if not 0 < len(value) <= 256 or not value.isprintable() or value != value.strip():
            raise ValueError(
                f"tag {key}={value!r:.80}: a value is 1 to 256 printable characters, without"
                " blanks around them"
            )
    return dict(tags)


def tags_of(noted: object) -> dict[str, str]:
    """The tags among what a record notes as such; programs may note there what they like."""
    pairs = noted.items() if isinstance(noted, Mapping) else ()
    return {key: v for key, v in pairs if isinstance(key, str) and isinstance(v, str)}


class FlowRow(NamedTuple):
    """What a list tells of a flow.

    `state` is PENDING also before anybody ran it.  `created` and `updated` (the last write) are in
    unix seconds, None where nobody knows.  `counts` say how many of its tasks are in which state.
    `lease` is the owner that runs it (`owners.in_words` tells people who that is), or None.
    `error` says, in one line, why it is in FAILURE or REVERTED (None: nobody knows).  `tags` are
    those it was made with.
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
    tags: Mapping[str, str] = MappingProxyType({})


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
            if isinstance(tie, int) and abs(tie) >= 2**63:
                raise ValueError("no database has so many")
            return cls(float(created), tie if isinstance(tie, int) else str(tie))
        except (ValueError, TypeError, OverflowError):
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
    text: str | None = None
    tags: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.states, str):
            raise TypeError(f"states is a collection of states, not {self.states!r}")
        for state in self.states or ():
            states.check_known("state of a flow", state, states.FLOW_STATES)
        if isinstance(self.limit, bool) or not isinstance(self.limit, int) or self.limit < 1:
            raise ValueError(f"limit is a number of flows from 1 on, not {self.limit!r}")
        check_tags(self.tags or {})

    def wants_state(self, state: str | None) -> bool:
        return self.states is None or (state or states.PENDING) in self.states

    def wants(self, uuid: str, name: str, tags: Mapping[str, str]) -> bool:
        """Whether a flow of that name may be among them, whatever else it is."""
        text = self.text
        return (
            (self.name is None or self.name in name)
            and (self.uuid is None or uuid.startswith(self.uuid))
            and (text is None or text in name or uuid.startswith(text))
            and (self.tags or {}).items() <= tags.items()
        )

    def wants_place(self, place: Place) -> bool:
        """Whether a flow that is there was created late enough, and is on this page or later."""
        if self.since is not None and place.created < self.since:
            return False
        if self.after is None:
            return True
        return place < self.after if self.newest_first else place > self.after
