"""The latest view of one flow, kept at hand; that of a huge one is made while others are shown."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

from wbengine.views import flow as flows
from wbengine.views import history, redaction
from wbengine.views.flow import FlowRecords, on_workers

__all__ = ["ViewCache", "Latest", "Offered"]

#: A view that takes more seconds than this to make is not waited for, where an older one will do.
DEAR: Final = 0.25
#: It is made anew after so many times as long.
LINGERS: Final = 3.0

#: Makers of dear views take turns: they need a processor and memory.
_TURN: Final = threading.Lock()

#: Tells the names of the tasks that workers offer, if that is known; never waits.
Offered = Callable[[], Collection[str] | None]

#: What a look saw, to be compared: a cursor alone need not tell of the flow's own row.
_Seen = tuple[str, int, dict[str, Any]]


class Latest(NamedTuple):
    """A view, and whether it was all that was known when it was asked for.

    `again` are the seconds after which to ask again: something newer is kept, or may be.  None:
    nothing is.
    """

    view: flows.FlowView
    again: float | None = None


class ViewCache:
    """Thread-safe; what blocks says so."""

    def __init__(self, records: FlowRecords, offered: Offered) -> None:
        self._records = records
        self._offered = offered
        # Around what makes a view.
        self._making = threading.Lock()
        # Around whatever reads or changes the records, but for what makes a view of them.
        self._lock = threading.Lock()
        self._is_being_made = False
        self._view: flows.FlowView | None = None
        # What was seen before it was made.
        self._shown: _Seen | None = None
        self._cost = self._made = 0.0
        self._maker: threading.Thread | None = None
        self._failed: Exception | None = None
        self._is_closed = False

    @property
    def size(self) -> int:
        """How many atoms it has."""
        return 0 if self._view is None else self._view.total

    @property
    def is_made(self) -> bool:
        return self._view is not None

    def fresh(self) -> flows.FlowView:
        """The flow as it is now.  Blocks.

        :raises NotFound: it is not kept any more.
        """
        try:
            with self._making:
                return self._made_now()
        finally:
            if self._is_closed:
                self.close()

    def _made_now(self) -> flows.FlowView:
        began = time.monotonic()
        with self._lock:
            seen, view = self._look(), self._view
            is_dear = self._cost > DEAR
            if view is not None and is_dear and seen == self._shown and self._left(began) > 0:
                return view  # nothing has changed but the time
            self._is_being_made = True
        try:
            detail = self._records.detail
            offered = self._offered() if detail is not None and on_workers(detail) else None
            view = self._records.view(offered=offered)
            with self._lock:
                self._view, self._shown = view, seen
                self._made = time.monotonic()
                self._cost = self._made - began
            return view
        finally:
            self._is_being_made = False

    def _look(self) -> _Seen:
        found = self._records.look()
        return found.cursor, found.flow.epoch, found.flow.to_dict()

    def latest(self) -> Latest:
        """The flow as it is now, or, where that is dear, as it was a moment ago.

        Blocks once; later it only looks whether there is anything new.

        :raises NotFound: it is not kept any more.
        :raises Exception: as `begin`.
        """
        with self._lock:
            view, cost = self._view, self._cost
            is_dear = view is not None and cost > DEAR
            is_behind = is_dear and (self._is_being_made or self._look() != self._shown)
        if view is None or not is_dear:
            return Latest(self.fresh())
        left = self._left(time.monotonic())
        if left <= 0:
            self.begin()
            left = cost
        return Latest(view, left if is_behind else None)

    def _left(self, now: float) -> float:
        """Seconds until a dear view is made again."""
        return self._made + LINGERS * self._cost - now

    def begin(self) -> None:
        """Have the view made, without waiting for it.

        :raises Exception: what the last try failed with.
        """
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
        if self._maker is None or not self._maker.is_alive():
            self._maker = threading.Thread(target=self._make, name="wbengine-view", daemon=True)
            self._maker.start()

    def _make(self) -> None:
        try:
            with _TURN:
                self.fresh()
        except Exception as error:  # whoever asks next is told
            self._failed = error

    def look(self) -> tuple[redaction.Redactor, str]:
        """See what is new: a redactor that knows all secrets of it, and its cursor.  Blocks.

        :raises NotFound: it is not kept any more.
        """
        with self._making, self._lock:
            found = self._records.look()
            return self._records.redactor, found.cursor

    def events(self, limit: int, after: str | None, latest_first: bool) -> history.EventPage:
        """A page of what happened until the latest look, as `history.page`.  Blocks."""
        if self._records.detail is None:
            self.look()
        detail = self._records.detail
        assert detail is not None  # it was read
        with self._lock:
            return history.page(
                detail,
                self._records.redactor,
                limit=limit,
                after=after,
                latest_first=latest_first,
            )

    def close(self) -> None:
        """Give back what it holds; if a view is being made, as soon as it is."""
        self._is_closed = True
        with self._lock:
            if not self._is_being_made:
                self._records.close()
