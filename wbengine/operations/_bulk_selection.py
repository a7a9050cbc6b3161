"""Selection of the flows of an operation on many flows, by filters or by ids."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from wbengine import exceptions
from wbengine._text import json_text
from wbengine.jobs import _places
from wbengine.operations._operation import Many, Operation
from wbengine.persistence import _listing, base
from wbengine.types import _written_tags
from wbengine.views import _flow_list, _shown_states

__all__ = ["FILTER", "MAX_FLOWS", "Filter", "iterate", "select", "select_by_id", "select_for"]

#: Number of flows that one statement lists.
_ROWS_PER_PAGE: Final = 1000
#: Maximum number of flows that a request names by id.
MAX_FLOWS: Final = 10_000

_TEXT: Final = {"type": "string", "minLength": 1, "maxLength": 500}
#: JSON schema of a filter. An empty one would select all flows.
FILTER: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "states": {"type": "array", "items": {"enum": list(_shown_states.LISTED)}, "minItems": 1},
        "name": _TEXT,
        "text": _TEXT,
        "since": {"type": "number"},
        "tags": {
            "anyOf": [
                {**_written_tags.TEXTS_SCHEMA, "minProperties": 1},
                {"type": "array", "items": _written_tags.CONDITION_SCHEMA, "minItems": 1},
            ]
        },
        "error": _TEXT,
        "incident": {"enum": ["resent"]},
        "engine": _TEXT,
        "queue": {"type": "string", "pattern": _places.QUEUE_PATTERN},
        "parent": _TEXT,
        "code": _TEXT,
        "forks": {"type": "boolean"},
    },
    "minProperties": 1,
    "not": {"required": ["forks"], "maxProperties": 1},
    "additionalProperties": False,
}


class Filter(NamedTuple):
    """Conditions of flows; see `Connection.list_flows`.

    :ivar states: stored or displayed states; empty: those that the operation accepts.
    :ivar tags: values by key, or conditions such as "amount>100".
    :ivar incident: "resent": only flows of which a task was resent.
    :ivar parent: only child flows of the flow with this uuid.
    :ivar code: only flows whose latest task or step was executed by this version of the code.
    :ivar forks: also forks, if the operation leaves them out (`Many.omits_forks`).
    """

    states: tuple[str, ...] = ()
    name: str | None = None
    text: str | None = None
    since: float | None = None
    tags: Mapping[str, str] | Sequence[str] = ()
    error: str | None = None
    incident: str | None = None
    engine: str | None = None
    queue: str | None = None
    parent: str | None = None
    code: str | None = None
    forks: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the conditions that are set."""
        return {name: value for name, value in self._asdict().items() if value}


def select(
    connection: base.Connection,
    conditions: Filter,
    states: Collection[str],
    is_selected: Callable[[_listing.FlowRow], bool] = lambda row: True,
    *,
    many: Many | None = None,
) -> list[_listing.FlowRow]:
    """Return the rows of all flows that meet the conditions, the newest first.

    :param states: displayed states of the flows if the conditions have none.
    :param is_selected: a further condition if they have none.
    :param many: which flows are left out.
    :raises ValueError: if a condition is invalid.
    """
    return list(iterate(connection, conditions, states, is_selected, many=many))


def iterate(
    connection: base.Connection,
    conditions: Filter,
    states: Collection[str],
    is_selected: Callable[[_listing.FlowRow], bool] = lambda row: True,
    *,
    many: Many | None = None,
) -> Iterator[_listing.FlowRow]:
    """Yield the same rows as `select`. Only one page of them is in memory.

    :raises ValueError: if a condition is invalid.
    """
    after: str | None = None
    while True:
        page = connection.list_flows(
            states=_shown_states.stored_states(conditions.states or states),
            name=conditions.name,
            text=conditions.text,
            since=conditions.since,
            tags=conditions.tags,
            commanded=_shown_states.have_command(conditions.states),
            error=conditions.error,
            resent=conditions.incident is not None,
            engine=conditions.engine,
            queue=conditions.queue,
            parent=conditions.parent,
            code=conditions.code,
            roots=many is not None and many.omits_children and conditions.parent is None,
            limit=_ROWS_PER_PAGE,
            after=after,
        )
        for row in page.flows:
            shown = _flow_list.shown_state(row)
            if conditions.states:
                matches = row.state in conditions.states or shown in conditions.states
            else:
                matches = shown in states and is_selected(row)
            if matches and not (many is not None and _is_omitted(row, many, conditions)):
                yield row
        after = page.after
        if after is None:
            return


def select_for(
    connection: base.Connection,
    operation: Operation,
    conditions: Filter,
    arguments: Mapping[str, Any],
) -> list[_listing.FlowRow]:
    """Return the rows of the flows for an operation with these arguments.

    Without states, `flow signal` selects the flows that wait for its signal.

    :raises ValueError: if a condition is invalid.
    """

    def waits(row: _listing.FlowRow) -> bool:
        return any(wait.signal == arguments.get("signal") for wait in row.waits_for)

    if operation.verb == "signal":
        return select(connection, conditions, operation.states, waits)
    return select(connection, conditions, operation.states, many=operation.many)


def _is_omitted(row: _listing.FlowRow, many: Many, conditions: Filter) -> bool:
    return (many.omits_forked and row.has_forks) or (
        many.omits_forks and row.is_fork and not conditions.forks
    )


def select_by_id(connection: base.Connection, uuids: Sequence[str]) -> list[_listing.FlowRow]:
    """Return the rows of these flows, each once.

    :raises NotFound: if a flow does not exist.
    """
    rows = {}
    for uuid in uuids:
        if not json_text.is_text(uuid):
            raise exceptions.NotFound(f"Unknown flow {uuid!r:.80}")
        rows[uuid] = connection.get_row(uuid)
    return list(rows.values())
