"""Watches a flow through its records: what happened since the last look."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Final

from wbengine import states
from wbengine.persistence import base, models
from wbengine.types import outline as outlines
from wbengine.views import events, flow, sources
from wbengine.views.events import Event
from wbengine.views.flow import FlowView
from wbengine.views.masking import Masker

__all__ = ["Event", "Watch", "past"]

_ENDED: Final = frozenset({states.SUCCESS, states.FAILURE, states.REVERTED})


class Watch:
    """Looks at a flow turn by turn; a turn costs what changed since the one before.

    The first turn tells what happened so far, as far as it is remembered; with a `cursor` (of
    another watch, or of a `FlowView`) only what came after it.  Reads only, and keeps a connection:
    close it, or use it as a context manager.  For one thread.
    """

    def __init__(
        self,
        backend: base.Backend,
        uuid: str,
        *,
        masker: Masker | None = None,
        cursor: str | None = None,
    ) -> None:
        self.uuid = uuid
        self._connection = backend.get_connection()
        self._masker = masker or Masker()
        self._cursor = cursor
        # The masker knows the secrets of all that was kept before the cursor.
        self._is_acquainted = False
        self._teller = events.Teller()
        # All that is known, when that is all there is.
        self._known: models.FlowDetail | None = None
        self._state: str | None = None
        # What happened before a look at the whole, for the next turn.
        self._untold: list[Event] = []
        self._outline: outlines.Outline | None = None
        self._outlined = -1
        self._book: tuple[str, str] | None = None

    @property
    def cursor(self) -> str | None:
        """Where another watch goes on after the latest turn."""
        return self._cursor

    @property
    def finished(self) -> bool:
        """The flow had come to its end at the latest turn; it may be run again, though."""
        return self._state in _ENDED

    def turn(self, now: float | None = None) -> list[Event]:
        """What happened since the turn before, in that order.

        :raises NotFound: the flow is not kept (any more).
        """
        found, self._untold = self._untold, []
        return [*found, *self._look(time.time() if now is None else now)]

    def _look(self, now: float) -> list[Event]:
        first = self._cursor is None
        changes = self._connection.get_changes(self.uuid, self._cursor)
        self._cursor, self._state = changes.cursor, changes.flow.state
        if not (changes.whole or self._is_acquainted):
            # What changed may tell a secret that is kept in what did not.
            everything = self._connection.get_changes(self.uuid).put_into(None)
            self._masker = self._masker.knowing_flow(everything)
        self._is_acquainted = True
        self._masker = self._masker.knowing(*sources.of_changes(changes))
        if changes.whole or self._known is not None:
            self._known = changes.put_into(self._known)
        moment = None if first else now
        return self._teller.tell(changes.flow, changes.atoms, self._masker, moment)

    def view(self, now: float | None = None) -> FlowView:
        """The flow as it was at the latest turn (or a little later, for a watch that began with a
        cursor: it reads all atoms, once).

        :raises NotFound: the flow is not kept (any more).
        """
        now = time.time() if now is None else now
        if self._cursor is None or self._known is None:
            self._untold += self._look(now)
        if self._known is None:
            # What is new in this comes again with the next turn, which is where it is told.
            self._known = self._connection.get_changes(self.uuid).put_into(None)
            self._masker = self._masker.knowing_flow(self._known)
        detail = self._known
        if self._outlined != detail.epoch or self._outline is None:
            self._outline = self._connection.get_outline(self.uuid)
            self._outlined = detail.epoch
        if self._book is None:
            self._book = flow.book_of(self._connection, self.uuid)
        return flow.view(
            detail,
            self._outline,
            self._connection.get_lease(self.uuid),
            now=now,
            masker=self._masker,
            book=self._book,
            wish=self._connection.wishes([self.uuid]).get(self.uuid),
            cursor=self._cursor,
        )

    def close(self) -> None:
        """Give the connection back; idempotent."""
        self._connection.close()

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def past(detail: models.FlowDetail, masker: Masker | None = None) -> list[Event]:
    """What happened to a flow so far, as far as its records remember it."""
    masker = (masker or Masker()).knowing(*sources.of_flow(detail))
    return events.Teller().tell(detail, detail, masker, None)
