"""The records of one flow at hand, and up to date at the cost of what changed."""

from __future__ import annotations

import time
from collections.abc import Collection

from wbengine.persistence import base, changes, models
from wbengine.types import outline as outlines
from wbengine.views import flow, sources
from wbengine.views.masking import Masker

__all__ = ["Records"]


class Records:
    """What is kept of a flow, and a masker that knows its secrets.

    Reads only, and keeps a connection: close it.  For one thread at a time.
    """

    def __init__(
        self, backend: base.Backend, uuid: str, masker: Masker, cursor: str | None = None
    ) -> None:
        self.uuid = uuid
        self.masker = masker
        #: Where somebody else goes on after the latest look.
        self.cursor = cursor
        #: All that is known, when that is all there is.
        self.detail: models.FlowDetail | None = None
        self._connection = backend.get_connection()
        self._outline: outlines.Outline | None = None
        self._outlined = -1
        self._book: tuple[str, str] | None = None

    def look(self) -> changes.Changes:
        """What changed since the look before, or since the cursor.

        :raises NotFound: the flow is not kept (any more).
        """
        found = self._connection.get_changes(self.uuid, self.cursor)
        self.cursor = found.cursor
        self.masker = self.masker.knowing(*sources.of_changes(found))
        if found.whole or self.detail is not None:
            self.detail = found.put_into(self.detail)
        return found

    def learn(self) -> models.FlowDetail:
        """Read all records, to know their secrets; the cursor stays where it was.

        :raises NotFound: the flow is not kept (any more).
        """
        found = self._connection.get_changes(self.uuid).put_into(None)
        self.masker = self.masker.knowing_flow(found)
        return found

    def view(
        self, now: float | None = None, offered: Collection[str] | None = None
    ) -> flow.FlowView:
        """The flow as it was at the latest look; `offered` as for `flow.view`.

        :raises NotFound: the flow is not kept (any more).
        """
        if self.detail is None:
            self.detail = self.learn()
        detail = self.detail
        if self._outlined != detail.epoch or self._outline is None:
            self._outline = self._connection.get_outline(self.uuid)
            self._outlined = detail.epoch
        if self._book is None:
            self._book = flow.book_of(self._connection, self.uuid)
        return flow.view(
            detail,
            self._outline,
            self._connection.get_lease(self.uuid),
            now=time.time() if now is None else now,
            masker=self.masker,
            book=self._book,
            wish=self._connection.commands([self.uuid]).get(self.uuid),
            cursor=self.cursor,
            offered=offered,
        )

    def close(self) -> None:
        """Give the connection back; idempotent."""
        self._connection.close()
