"""Watch a flow through its records. A poll reads only the changes."""

from __future__ import annotations

import time

from wbengine import states
from wbengine.persistence import base, models
from wbengine.views import _event_history, flow_status
from wbengine.views._event_history import Event
from wbengine.views.flow_status import FlowView
from wbengine.views.redaction import Redactor

__all__ = ["Event", "FlowWatcher", "events_of"]


class FlowWatcher:
    """Watcher that polls a flow for events. A poll reads only what changed since the last one.

    The first poll returns all stored events, or those after `cursor` (the cursor of another
    watcher or of a `FlowView`). The watcher keeps a connection: close it, or use it as a context
    manager. Not thread-safe.

    :param knows_secrets: whether `redactor` already masks all secrets that were stored before the
        cursor. Otherwise the first poll reads all records to collect them.
    """

    def __init__(
        self,
        backend: base.Backend,
        uuid: str,
        *,
        redactor: Redactor | None = None,
        cursor: str | None = None,
        knows_secrets: bool = False,
    ) -> None:
        #: UUID of the flow.
        self.uuid = uuid
        self._records = flow_status.FlowRecords(
            backend.get_connection(), uuid, redactor or Redactor(), cursor
        )
        self._knows_secrets = knows_secrets
        self._collector = _event_history.EventCollector()
        self._state: str | None = None
        self._pending_events: list[Event] = []

    @property
    def cursor(self) -> str | None:
        """Position after the latest poll. Another watcher can continue from it."""
        return self._records.cursor

    @property
    def finished(self) -> bool:
        """Whether the flow had ended at the latest poll. A finished flow can be run again."""
        return self._state in states.FLOW_ENDED

    def poll(self, now: float | None = None) -> list[Event]:
        """Return the events since the previous call, in order.

        :raises NotFound: if the flow does not exist.
        """
        events, self._pending_events = self._pending_events, []
        return [*events, *self._poll(time.time() if now is None else now)]

    def _poll(self, now: float) -> list[Event]:
        records = self._records
        is_first = records.cursor is None
        changes = records.read_changes()
        self._state = changes.flow.state
        if not (changes.whole or self._knows_secrets):
            # A changed record may contain a secret that only an unchanged record marks as secret.
            records.read_all()
        self._knows_secrets = True
        event_time = None if is_first else now
        return self._collector.collect(changes.flow, changes.atoms, records.redactor, event_time)

    def view(self, now: float | None = None) -> FlowView:
        """Return the flow as of the latest poll.

        If the watcher started with a cursor, the first call reads all atoms, and the view can be
        newer.

        :raises NotFound: if the flow does not exist.
        """
        now = time.time() if now is None else now
        if self.cursor is None or self._records.detail is None:
            self._pending_events += self._poll(now)
        # The next `poll` reads records that are newer than the cursor again, and reports them.
        return self._records.view(now)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._records.close()

    def __enter__(self) -> FlowWatcher:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def events_of(detail: models.FlowDetail, redactor: Redactor | None = None) -> list[Event]:
    """Return all stored events of a flow, in order."""
    redactor = (redactor or Redactor()).with_secrets_of_flow(detail)
    return _event_history.EventCollector().collect(detail, detail, redactor, None)
