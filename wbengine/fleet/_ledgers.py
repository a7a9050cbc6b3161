"""Pages of the rows of a ledger."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from wbengine import transports
from wbengine._introspection import object_names
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.transports import _ledger
from wbengine.views import _formatting

__all__ = ["STATES", "RowPage", "RowView", "open_ledger", "rows"]

STATES: Final = (_ledger.ROW_OPEN, _ledger.ROW_CLAIMED, _ledger.ROW_DONE)

#: Maximum number of rows that are read for a page of rows in one state.
_MAX_ROWS_READ: Final = 100_000


@dataclass(frozen=True, slots=True)
class RowView:
    """One row of a ledger. `holder` is the worker that claimed it; `age` is in seconds."""

    id: str
    epoch: int
    state: str
    holder: str | None
    age: float

    def to_dict(self) -> dict[str, Any]:
        return {**_formatting.as_dict(self), "age": round(self.age, 3)}


@dataclass(frozen=True, slots=True)
class RowPage:
    """A page of rows. `after` is the cursor of the next page; None on the last page."""

    rows: tuple[RowView, ...]
    after: str | None


@contextlib.contextmanager
def open_ledger(place: str | None, target: transports.Target) -> Iterator[_ledger.Ledger | None]:
    """Open a ledger by its place, or the broker's ledger; yield None if there is none.

    Expired rows are not deleted.

    :raises ValueError: if the place is invalid.
    :raises ImportError: if a required package is not installed.
    :raises LedgerFailure, TransportFailure: if the ledger cannot be used.
    """
    ledger = ledgers.choose(ledgers.check_for(place, target), target, result_ttl=None)
    try:
        yield ledger
    finally:
        if ledger is not None:
            ledger.close()


def rows(
    ledger: _ledger.Ledger,
    limit: int = 100,
    after: str | None = None,
    state: str | None = None,
    is_chosen: Callable[[RowView], bool] | None = None,
) -> RowPage:
    """Return a page of rows, optionally only rows in one state.

    :param is_chosen: whether a row is in the page; None: all are.
    :raises ValueError: if the state is unknown or `limit` is invalid.
    :raises LedgerFailure: if the ledger cannot be read.
    """
    if state is not None and state not in STATES:
        hint = object_names.hint(state, STATES)
        raise ValueError(f"state must be one of {', '.join(STATES)}, got {state!r}{hint}")
    found: list[RowView] = []
    rows_read, limit, last_number = 0, _ledger.check_limit(limit), 0
    is_filtered = state is not None or is_chosen is not None
    while True:
        missing = limit - len(found)
        size = _ledger.MAX_LISTED_ROWS if is_filtered else missing  # Few rows may match a filter.
        page = ledger.list_rows(last_number or size, after)
        views = (RowView(row.id, row.epoch, row.state, row.holder, row.age) for row in page.rows)
        matching = [
            (number, view)
            for number, view in enumerate(views, 1)
            if state in (None, view.state) and (is_chosen is None or is_chosen(view))
        ]
        if len(matching) > missing:
            # The next page must start after the last row of this one. Rows may change meanwhile.
            last_number = matching[missing - 1][0]
            continue
        found += [view for _, view in matching]
        rows_read, after, last_number = rows_read + len(page.rows), page.after, 0
        if after is None or len(found) >= limit or rows_read >= _MAX_ROWS_READ:
            return RowPage(tuple(found), after)
