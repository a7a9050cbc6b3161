"""The workers, as far as a broker tells of them."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from typing import TYPE_CHECKING, Final

from wbengine import exceptions
from wbengine.engines.worker_based.messages import life
from wbengine.views import ledgers, queues
from wbengine.views.ledgers import RowPage
from wbengine.views.redaction import Redactor, redacted

if TYPE_CHECKING:
    from wbengine.views.fleet import Fleet, WorkerView
    from wbengine.views.queues import QueueView

__all__ = ["WorkerMonitor"]

#: Seconds for which an answer is good enough, and for which it is waited.
FRESH: Final = 1.5
ANSWERED: Final = 0.5
#: Seconds until a broker that was away is tried again by who does not wait for it.
AGAIN: Final = 10.0

_LEAVING: Final = frozenset({life.DRAINING, life.DEAD})


class WorkerMonitor:
    """A fleet that is opened by the first who wants to see it.  Thread-safe, and blocks."""

    def __init__(
        self, fleet: Fleet | None, ledger: str | None = None, redactor: Redactor | None = None
    ) -> None:
        """:param ledger: the place of the ledger; None: that of the broker."""
        self._fleet = fleet
        self._ledger = ledger
        self._redactor = redactor or Redactor()
        self._lock = threading.Lock()
        self._is_open = False
        self._asking = threading.Lock()
        self._asked = -math.inf
        self._settled = False
        self._tried = -math.inf

    @property
    def is_known(self) -> bool:
        """Whether there is a broker to ask."""
        return self._fleet is not None

    def workers(self) -> list[WorkerView]:
        """Who is there, and what they do.

        Workers tell of themselves when they are asked; those who look share what was told in the
        last `FRESH` seconds.

        :raises TransportFailure: the broker cannot be reached.
        """
        fleet = self.opened()
        with self._asking:
            if time.monotonic() - self._asked >= FRESH:
                fleet.ping(timeout=ANSWERED)
                self._asked = time.monotonic()
        return redacted(fleet.workers(), self._redactor)

    def queues(self) -> list[QueueView]:
        """What waits where.

        :raises TransportFailure: the broker cannot be reached.
        """
        return redacted(queues.look(self.opened()), self._redactor)

    def offered(self) -> frozenset[str] | None:
        """Names of the tasks that workers take on now; None: nobody knows (yet).

        Never waits: a broker that is away does not keep a flow from being shown.
        """
        if self._fleet is None:
            return None
        if self._settled:
            there = [worker for worker in self._fleet.workers() if worker.state not in _LEAVING]
            return frozenset(task for worker in there for task in worker.tasks)
        with self._lock:
            now = time.monotonic()
            if now - self._tried >= AGAIN:
                self._tried = now
                threading.Thread(target=self._settle, name="wbengine-monitor", daemon=True).start()
        return None

    def _settle(self) -> None:
        """Wait until those who are there have said so."""
        with contextlib.suppress(exceptions.TransportFailure, exceptions.NotFound):
            self.opened().workers()
            self._settled = True

    def drain(self, name: str) -> None:
        """Tell one worker, by the name that is shown, to take nothing new, and to end.

        :raises NotFound: it is not there.
        """
        fleet = self.opened()
        meant = [each.name for each in fleet.workers() if self._redactor.text(each.name) == name]
        fleet.control("drain", meant[:1] or [name])

    def opened(self) -> Fleet:
        """The fleet.

        :raises NotFound: there is none.
        :raises TransportFailure: its broker cannot be reached.
        """
        if self._fleet is None:
            raise exceptions.NotFound("The dashboard was not told of a broker.")
        with self._lock:
            if not self._is_open:
                self._fleet.open()
                self._is_open = True
        return self._fleet

    def rows(self, limit: int, after: str | None, state: str | None) -> RowPage | None:
        """A page of the ledger, as `ledgers.rows`; None: there is no ledger.

        :raises ValueError: what is asked for means nothing.
        :raises LedgerFailure, TransportFailure: it cannot be read.
        """
        with ledgers.opened(self._ledger, self.opened().target) as ledger:
            if ledger is None:
                return None
            found = ledgers.rows(ledger, limit, after, state)
            return RowPage(tuple(redacted(found.rows, self._redactor)), found.after)

    def close(self) -> None:
        with self._lock:
            if self._is_open and self._fleet is not None:
                self._fleet.close()
            self._is_open = False
