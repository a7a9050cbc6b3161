"""Filters of the list of flows."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request

from wbengine import states
from wbengine._configuration import plugins
from wbengine._introspection import object_names
from wbengine.dashboard import _http_errors
from wbengine.engines import _engine_choice
from wbengine.jobs import _places
from wbengine.operations import _bulk_selection
from wbengine.persistence import _listing as listings
from wbengine.persistence import base as persistence
from wbengine.types import _tags
from wbengine.views import _flow_list, _shown_states, redaction

__all__ = ["MAX_FIND_CHARS", "PERIODS", "FlowFilter", "check_engine", "check_name", "engine_kinds"]

#: Periods of the filter: name, label and seconds.
PERIODS: Final[Mapping[str, tuple[str, float]]] = {
    "1h": ("last hour", 3600.0),
    "24h": ("last 24 hours", 86400.0),
    "7d": ("last 7 days", 7 * 86400.0),
    "30d": ("last 30 days", 30 * 86400.0),
}
DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 500
#: Longer than a tag with an operator. The time to parse a text grows with the square of its length.
MAX_FIND_CHARS: Final = 330
_MAX_CURSOR_CHARS: Final = 500
_MAX_UUID_CHARS: Final = 64
_OPERATOR: Final = re.compile(r"\s*(<=|>=|=|<|>)\s*")


def engine_kinds() -> list[str]:
    """Return the kinds of engines that can be selected, each with one name."""
    names = plugins.names(_engine_choice.ENGINES_NAMESPACE)
    return [name for name in names if listings.engine_names(name)[0] == name]


def check_engine(engine: str) -> str:
    """Return the first name of a kind of engines.

    :raises ValueError: if there is no such kind.
    """
    engine = listings.engine_names(engine)[0]
    if engine not in (kinds := engine_kinds()):
        raise ValueError(f"engine must be one of {', '.join(kinds)}, got {engine!r:.40}")
    return engine


def check_name(name: str) -> str:
    """Return a part of a name of flows or tasks without surrounding blanks.

    :raises ValueError: if it is longer than any name.
    """
    return object_names.check_length("name", name.strip())


@dataclass(frozen=True, slots=True)
class FlowFilter:
    """Filter and position in the list of flows."""

    name: str = ""
    states: tuple[str, ...] = ()
    since: str = ""
    after: str = ""
    limit: int = DEFAULT_LIMIT
    #: A part of the name, a prefix of the id, or a tag: `key=value`, `key>number`.
    find: str = ""
    #: Kind of the engine that ran the flows last.
    engine: str = ""
    #: Queue to which the flows were submitted.
    queue: str = ""
    #: UUID of the flow whose children are listed.
    parent: str = ""

    @classmethod
    def of(cls, request: Request) -> FlowFilter:
        """Return the filter in the URL of a request.

        :raises ValueError: if a parameter is not valid.
        """
        query = request.query_params
        flow_states = tuple(dict.fromkeys(state for state in query.getlist("state") if state))
        for state in flow_states:
            states.check_known("state of a flow", state, _shown_states.LISTED)
        since, limit = query.get("since", ""), _http_errors.limit(request, DEFAULT_LIMIT, MAX_LIMIT)
        if since and since not in PERIODS:
            raise ValueError(f"since must be one of {', '.join(PERIODS)}, got {since!r:.40}")
        name, after = check_name(query.get("name", "")), query.get("after", "")
        if len(after) > _MAX_CURSOR_CHARS:
            raise ValueError(f"after must be the cursor of a page, got {after!r:.40}")
        find = object_names.check_length("find", query.get("find", "").strip(), MAX_FIND_CHARS)
        engine = query.get("engine", "")
        if engine:
            engine = check_engine(engine)
        queue = query.get("queue", "").strip()
        if queue:
            _places.check_queue(queue)
        parent = object_names.check_length(
            "parent", query.get("parent", "").strip(), _MAX_UUID_CHARS
        )
        return cls(name, flow_states, since, after, limit, find, engine, queue, parent)

    @property
    def is_all(self) -> bool:
        filters = (self.name, self.states, self.since, self.find, self.engine, self.queue)
        return not (any(filters) or self.after or self.parent)

    @property
    def _tags(self) -> tuple[str, ...]:
        try:
            return (str(_tags.Condition.parse(_OPERATOR.sub(r"\1", self.find, count=1))),)
        except ValueError:  # The text is a part of a name.
            return ()

    def conditions(self) -> _bulk_selection.Filter:
        """Return the conditions of the list, without its position."""
        tags = self._tags
        since = time.time() - PERIODS[self.since][1] if self.since else None
        return _bulk_selection.Filter(
            self.states,
            self.name or None,
            None if tags else self.find or None,
            since,
            tags,
            engine=self.engine or None,
            queue=self.queue or None,
            parent=self.parent or None,
        )

    def query(self, **changes: Any) -> dict[str, Any]:
        """Return the query parameters of the URL of this list, updated with `changes`."""
        limit = "" if self.limit == DEFAULT_LIMIT else self.limit
        query = {"find": self.find, "name": self.name, "state": self.states, "since": self.since}
        position = {"limit": limit, "after": self.after}
        others = {"engine": self.engine, "queue": self.queue, "parent": self.parent}
        return {**query, **others, **position, **changes}

    def read(
        self, connection: persistence.Connection, redactor: redaction.Redactor
    ) -> _flow_list.ListingView:
        """Return the selected page.

        :raises ValueError: if `after` is not the cursor of a page.
        """
        tags = self._tags
        since = time.time() - PERIODS[self.since][1] if self.since else None
        return _flow_list.page(
            connection,
            states=self.states or None,
            name=self.name or None,
            since=since,
            limit=self.limit,
            after=self.after or None,
            text=None if tags else self.find or None,
            tags=tags,
            engine=self.engine or None,
            queue=self.queue or None,
            parent=self.parent or None,
            redactor=redactor,
        )
