"""The rows of a ledger: which requests are under way, and who has them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from wbengine import _names, transports
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.engines.worker_based.ledger import base
from wbengine.views import formatting

__all__ = ["STATES", "RowPage", "RowView", "opened", "rows"]

STATES: Final = (base.ROW_OPEN, base.ROW_CLAIMED, base.ROW_DONE)

#: So many rows are looked at for one page, at most, where only those of one state are wanted.
_MOST_LOOKED_AT: Final = 100_000


@dataclass(frozen=True, slots=True)
class RowView:
    """A request that is under way, as its ledger knows it; `age` is in seconds."""

    id: str
    epoch: int
    state: str
    holder: str | None
    age: float

    def to_dict(self) -> dict[str, Any]:
        return {**formatting.as_dict(self), "age": round(self.age, 3)}


@dataclass(frozen=True, slots=True)
class RowPage:
    """Some rows; `after` is what the next page is asked for with, None: there is none."""

    rows: tuple[RowView, ...]
    after: str | None


@contextlib.contextmanager
def opened(place: str | None, target: transports.Target) -> Iterator[base.Ledger | None]:
    """The ledger at a place, or that of the broker; None: there is none.  Nothing is swept.

    :raises ValueError: it is no place of a ledger.
    :raises ImportError: what it takes is not installed.
    :raises LedgerFailure, TransportFailure: it cannot be used.
    """
    found = ledgers.choose(ledgers.check_place(place), target, result_ttl=None)
    if found is None:
        yield None
        return
    try:
        yield found
    finally:
        found.close()


def rows(
    ledger: base.Ledger, limit: int = 100, after: str | None = None, state: str | None = None
) -> RowPage:
    """Some rows (of one state).

    :raises ValueError: there is no such state, or a page cannot have so many rows.
    :raises LedgerFailure: the ledger cannot be read.
    """
    if state is not None and state not in STATES:
        hint = _names.hint(state, STATES)
        raise ValueError(f"{state!r} is no state of a row{hint}: {', '.join(STATES)}")
    found: list[RowView] = []
    looked = 0
    while True:
        page = ledger.list_rows(base.check_limit(limit) - len(found), after)
        found += [
            RowView(row.id, row.epoch, row.state, row.holder, row.age)
            for row in page.rows
            if state is None or row.state == state
        ]
        looked, after = looked + len(page.rows), page.after
        if after is None or len(found) >= limit or looked >= _MOST_LOOKED_AT:
            return RowPage(tuple(found), after)
