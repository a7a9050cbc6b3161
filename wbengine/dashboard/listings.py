"""The list of flows: which are wanted, and the page of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request

from wbengine import states
from wbengine.dashboard import http_errors
from wbengine.persistence import base as persistence
from wbengine.persistence import listing as listings
from wbengine.views import listing, redaction

__all__ = ["PERIODS", "Wanted"]

#: How far back to look: name, what to call it, and seconds.
PERIODS: Final[Mapping[str, tuple[str, float]]] = {
    "1h": ("last hour", 3600.0),
    "24h": ("last 24 hours", 86400.0),
    "7d": ("last 7 days", 7 * 86400.0),
    "30d": ("last 30 days", 30 * 86400.0),
}
#: Flows on a page: at first, and at most.
LIMIT: Final = 50
MOST: Final = 500
#: What a page tells to be asked for the next one is not as long.
_LONGEST: Final = 500


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which flows somebody asked for."""

    name: str = ""
    states: tuple[str, ...] = ()
    since: str = ""
    after: str = ""
    limit: int = LIMIT
    #: What the name holds, what the id begins with, or `key=value` of a tag.
    find: str = ""

    @classmethod
    def of(cls, request: Request) -> Wanted:
        """What the address says.

        :raises ValueError: a part of it means nothing.
        """
        query = request.query_params
        found = tuple(dict.fromkeys(state for state in query.getlist("state") if state))
        for state in found:
            states.check_known("state of a flow", state, states.FLOW_STATES)
        since, limit = query.get("since", ""), http_errors.limit(request, LIMIT, MOST)
        if since and since not in PERIODS:
            raise ValueError(f"since={since!r:.40} is none of {', '.join(PERIODS)}")
        name, after = query.get("name", "").strip()[:200], query.get("after", "")
        if len(after) > _LONGEST:
            raise ValueError(f"after={after!r:.40} is not what a page told")
        return cls(name, found, since, after, limit, query.get("find", "").strip()[:330])

    @property
    def is_all(self) -> bool:
        return not (self.name or self.states or self.since or self.after or self.find)

    @property
    def _tags(self) -> dict[str, str]:
        key, _, value = (each.strip() for each in self.find.partition("="))
        try:
            return listings.check_tags({key: value})
        except ValueError:  # then it is a part of a name
            return {}

    def query(self, **more: Any) -> dict[str, Any]:
        """The parameters of an address that asks for the same, but for `more`."""
        limit = "" if self.limit == LIMIT else self.limit
        query = {"find": self.find, "name": self.name, "state": self.states, "since": self.since}
        return {**query, "limit": limit, "after": self.after, **more}

    def read(
        self, connection: persistence.Connection, redactor: redaction.Redactor
    ) -> listing.ListingView:
        """:raises ValueError: `after` is not what a page told."""
        tags = self._tags
        since = time.time() - PERIODS[self.since][1] if self.since else None
        return listing.page(
            connection,
            states=self.states or None,
            name=self.name or None,
            since=since,
            limit=self.limit,
            after=self.after or None,
            text=None if tags else self.find or None,
            tags=tags,
            redactor=redactor,
        )
