"""Connections to publish on, one after the other, for as long as it takes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

import kombu

from wbengine import exceptions as exc
from wbengine import transports
from wbengine.engines.worker_based.connections import connecting
from wbengine.transports import reasons

LOG = logging.getLogger(__name__)

#: Seconds between two attempts to publish: a broker that ails may well accept connections.
PAUSE: Final = 0.25

#: What ails the broker (a folder without room) or the ledger, rather than what is published.
AILMENTS: Final = (exc.TransportFailure, exc.LedgerFailure)


class Lasting:
    """Connect to `target`, and use the connection, again and again until `closed`; of one thread.

    `errors` are those after which another connection may help.
    """

    def __init__(self, target: transports.Target, closed: threading.Event) -> None:
        self.errors: Any = ()
        self._target = target
        self._closed = closed
        #: Why it did not work, as was told last; whoever publishes something takes that away.
        self.told = ""

    def run(self, use: Callable[[kombu.Connection], object]) -> None:
        """`use(connection)`, until it is closed; any thread may close it."""
        while not self._closed.is_set():
            try:
                connection = connecting.reach(self._target, self._closed, on_failure=self.tell)
            except exc.TransportFailure as error:
                self.tell(str(error))
                self._closed.wait(PAUSE)
                continue
            self.errors = (*connection.recoverable_connection_errors, *AILMENTS)
            try:
                with connection:
                    if not self._closed.is_set():
                        use(connection)
            except self.errors as error:
                self.tell(reasons.explain(error))
            except Exception:
                if self._closed.is_set():
                    return
                LOG.exception("failed to publish")
            self._closed.wait(PAUSE)

    def tell(self, why: str) -> None:
        """It does not work; said once, not with every attempt.  Any thread."""
        if why != self.told and not self._closed.is_set():
            self.told = why
            LOG.warning("cannot publish (%s), trying again", why)
