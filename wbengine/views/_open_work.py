"""Work of a store that waits for a conductor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from wbengine import exceptions, states
from wbengine.persistence import _bulk_records, _codes, _commands, _listing, _owners, base
from wbengine.views import _formatting, _shown_states

__all__ = ["OpenWork", "read"]

_ROWS_PER_PAGE: Final = 1000
#: States of flows that do not count as pending.
_BEGUN: Final = frozenset(states.FLOW_STATES) - {states.PENDING}
#: Maximum number of requests and operations that are counted.
_MAX_COUNTED: Final = 1000


class OpenWork(NamedTuple):
    """The work that a conductor begins next.

    :ivar is_served: whether a conductor runs.
    :ivar pending: number of flows in PENDING, also of those that were not submitted.
    :ivar requested: number of flows with a request that no conductor has begun.
    :ivar cancelled: number of suspended and interrupted flows that a conductor reverts next. These
        and `requested` are at most 1,000.
    :ivar bulks: number of operations on many flows that no process carries out, at most 1,000.
    :ivar waits_since: Unix time since when the oldest of this work waits for a conductor; None if
        there is none. Flows that were not submitted do not count.
    """

    is_served: bool
    pending: int
    requested: int
    cancelled: int
    bulks: int
    waits_since: float | None

    @property
    def text(self) -> str:
        """The numbers that are not zero, such as "2 flows in PENDING, 1 open request"."""
        parts = []
        if self.pending:
            parts.append(f"{_formatting.count(self.pending, 'flow')} in {states.PENDING}")
        if self.requested:
            requests = _formatting.count(self.requested, "request")
            parts.append(f"{requests} to run flows again ({_shown_states.REQUESTED})")
        if self.cancelled:
            parts.append(f"{_formatting.count(self.cancelled, 'request')} to cancel flows")
        if self.bulks:
            parts.append(f"{_formatting.count(self.bulks, 'operation')} on many flows")
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        return self._asdict()


def read(connection: base.Connection) -> OpenWork:
    """Return the work that waits for a conductor. Cost: O(requests + operations)."""
    pending = connection.backlog().flows
    requests = connection.commands([row.uuid for row in _with_command(connection)])
    numbers = Counter(command.what for command in requests.values())
    bulks = _unclaimed_bulks(connection)
    times = [
        *(row.created for row in _submitted(connection) if row.created is not None),
        *(each.at for each in requests.values() if each.what != _commands.SUSPEND),
        *(bulk.created for bulk in bulks),
    ]
    return OpenWork(
        _codes.is_served(connection.codes()),
        pending,
        sum(numbers[command] for command in _commands.RERUN_COMMANDS),
        numbers[_commands.CANCEL],
        len(bulks),
        min(times, default=None),
    )


def _unclaimed_bulks(connection: base.Connection) -> list[_bulk_records.Bulk]:
    try:
        store = connection.bulks
    except exceptions.StorageFailure:  # This store keeps no operations.
        return []
    return [
        each for each in store.latest((_bulk_records.RUNNING,), _MAX_COUNTED) if each.owner is None
    ]


def _submitted(connection: base.Connection) -> Iterator[_listing.FlowRow]:
    """Yield the oldest flow that waits for its first run in a conductor."""
    after: str | None = None
    while True:
        page = connection.list_flows(
            states=[states.PENDING], newest_first=False, limit=_ROWS_PER_PAGE, after=after
        )
        for row in page.flows:
            if row.submitted and row.lease is None:
                yield row
                return
        after = page.after
        if after is None:
            return


def _with_command(connection: base.Connection) -> list[_listing.FlowRow]:
    """Return submitted flows with a command that the engine of a conductor carries out next."""
    page = connection.list_flows(
        states=_BEGUN, commanded=True, newest_first=False, limit=_MAX_COUNTED
    )
    return [
        row
        for row in page.flows
        if row.submitted and (row.lease is None or _owners.is_dead(row.lease))
    ]
