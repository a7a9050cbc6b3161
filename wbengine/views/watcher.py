"""Watches a flow through its records, at the cost of what changed."""

from __future__ import annotations

import time

from wbengine import states
from wbengine.persistence import base, models
from wbengine.views import flow, history
from wbengine.views.flow import FlowView
from wbengine.views.history import Event
from wbengine.views.redaction import Redactor

__all__ = ["Event", "FlowWatcher", "events_of"]


class FlowWatcher:
    """Looks at a flow turn by turn; a turn costs what changed since the one before.

    The first turn tells what happened so far, as far as it is remembered; with a `cursor` (of
    another watch, or of a `FlowView`) only what came after it.  `knows_secrets`: the redactor
    knows the secrets of all that was kept before the cursor; else all is read once, to know them.
    Reads only, and keeps a connection: close it, or use it as a context manager.  For one thread.
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
        self.uuid = uuid
        self._records = flow.FlowRecords(
            backend.get_connection(), uuid, redactor or Redactor(), cursor
        )
        self._knows_secrets = knows_secrets
        self._teller = history.Teller()
        self._state: str | None = None
        # What happened before a look at the whole, for the next turn.
        self._untold: list[Event] = []

    @property
    def cursor(self) -> str | None:
        """Where another watch goes on after the latest turn."""
        return self._records.cursor

    @property
    def finished(self) -> bool:
        """The flow had come to its end at the latest turn; it may be run again, though."""
        return self._state in states.FLOW_ENDED

    def turn(self, now: float | None = None) -> list[Event]:
        """What happened since the turn before, in that order.

        :raises NotFound: the flow is not kept (any more).
        """
        found, self._untold = self._untold, []
        return [*found, *self._look(time.time() if now is None else now)]

    def _look(self, now: float) -> list[Event]:
        records = self._records
        first = records.cursor is None
        changes = records.look()
        self._state = changes.flow.state
        if not (changes.whole or self._knows_secrets):
            # What changed may tell a secret that is kept in what did not.
            records.learn()
        self._knows_secrets = True
        moment = None if first else now
        return self._teller.tell(changes.flow, changes.atoms, records.redactor, moment)

    def view(self, now: float | None = None) -> FlowView:
        """The flow as it was at the latest turn (or a little later, for a watch that began with a
        cursor: it reads all atoms, once).

        :raises NotFound: the flow is not kept (any more).
        """
        now = time.time() if now is None else now
        if self.cursor is None or self._records.detail is None:
            self._untold += self._look(now)
        # Of what is read now what is new comes again with the next turn, where it is told.
        return self._records.view(now)

    def close(self) -> None:
        """Give the connection back; idempotent."""
        self._records.close()

    def __enter__(self) -> FlowWatcher:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def events_of(detail: models.FlowDetail, redactor: Redactor | None = None) -> list[Event]:
    """What happened to a flow so far, as far as its records remember it."""
    redactor = (redactor or Redactor()).with_secrets_of_flow(detail)
    return history.Teller().tell(detail, detail, redactor, None)
