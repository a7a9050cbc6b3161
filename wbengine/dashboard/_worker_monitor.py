"""The workers of a broker."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from wbengine import exceptions
from wbengine.engines.worker_based._messages import worker_life
from wbengine.fleet import _ledgers
from wbengine.fleet import _message_queues as queues
from wbengine.fleet import _requests as requests
from wbengine.fleet import _summary as fleet_summary
from wbengine.fleet._ledgers import RowPage
from wbengine.views.redaction import Redactor, redacted

if TYPE_CHECKING:
    from wbengine.fleet._message_queues import QueueView
    from wbengine.fleet.client import Fleet, WorkerView

__all__ = ["WorkerMonitor"]

#: Seconds for which reports of workers are reused, and seconds to wait for new ones.
REUSE_SECONDS: Final = 1.5
REPLY_SECONDS: Final = 0.5
#: Seconds until `offered` tries an unreachable broker again.
RETRY_SECONDS: Final = 10.0

_LEAVING: Final = frozenset({worker_life.DRAINING, worker_life.DEAD})


class WorkerMonitor:
    """A fleet that is opened on first use. Thread-safe; all methods except `offered` block."""

    def __init__(
        self, fleet: Fleet | None, ledger: str | None = None, redactor: Redactor | None = None
    ) -> None:
        """Store the settings. `ledger` is a place; the default is the broker's ledger."""
        self._fleet = fleet
        self._ledger = ledger
        self._redactor = redactor or Redactor()
        self._lock = threading.Lock()
        self._is_open = False
        self._ping_lock = threading.Lock()
        self._pinged_at = -math.inf
        self._has_settled = False
        self._tried_at = -math.inf

    @property
    def ledger(self) -> str | None:
        """The place of the ledger; None: that of the broker."""
        return self._ledger

    @property
    def has_broker(self) -> bool:
        return self._fleet is not None

    def workers(self) -> list[WorkerView]:
        """Return the workers and their running tasks.

        Workers are asked for their state at most every `REUSE_SECONDS` seconds.

        :raises TransportFailure: if the broker cannot be reached.
        """
        fleet = self.open_fleet()
        with self._ping_lock:
            if time.monotonic() - self._pinged_at >= REUSE_SECONDS:
                fleet.ping(timeout=REPLY_SECONDS)
                self._pinged_at = time.monotonic()
        return redacted(fleet.workers(), self._redactor)

    def requests(
        self, chosen: requests.Filter, limit: int, after: str | None
    ) -> requests.RequestPage | None:
        """Return a page of requests like `requests.list_requests`; None without a ledger.

        :raises LedgerFailure, TransportFailure: if they cannot be read.
        """
        fleet = self.open_fleet()
        tasks = requests.running_tasks(self.workers())
        with _ledgers.open_ledger(self._ledger, fleet.target) as ledger:
            page = requests.list_requests(fleet, ledger, chosen, tasks, limit, after)
        if page is None:
            return None
        return requests.RequestPage(tuple(redacted(page.requests, self._redactor)), page.after)

    def queues(self) -> list[QueueView]:
        """Return the queues with the number of their messages.

        :raises TransportFailure: if the broker cannot be reached.
        """
        return redacted(queues.list_queues(self.open_fleet()), self._redactor)

    def summary(self) -> dict[str, Any]:
        """Return the load of the fleet. If it is unknown, `broker_error` is the reason."""
        try:
            load = fleet_summary.summary(self.open_fleet(), self.workers(), self.queues())
        except (exceptions.NotFound, exceptions.TransportFailure) as error:
            load = dict.fromkeys(fleet_summary.FIELDS)
            return {**load, "broker_error": self._redactor.text(str(error))}
        return {**load, "broker_error": None}

    def offered(self) -> frozenset[str] | None:
        """Return the names of the tasks that workers accept, or None if unknown.

        This does not block, so flows are shown even if the broker is unreachable.
        """
        if self._fleet is None:
            return None
        if self._has_settled:
            accepting = [worker for worker in self._fleet.workers() if worker.state not in _LEAVING]
            return frozenset(task for worker in accepting for task in worker.tasks)
        with self._lock:
            now = time.monotonic()
            if now - self._tried_at >= RETRY_SECONDS:
                self._tried_at = now
                threading.Thread(target=self._settle, name="wbengine-monitor", daemon=True).start()
        return None

    def _settle(self) -> None:
        with contextlib.suppress(exceptions.TransportFailure, exceptions.NotFound):
            self.open_fleet().workers()
            self._has_settled = True

    def full_name(self, shown: str) -> str:
        """Return the name of the worker that is displayed with this name, or the same name."""
        return self._unmasked(shown, [worker.name for worker in self.open_fleet().workers()])

    def full_queue_name(self, shown: str) -> str:
        """Return the name of the queue that is displayed with this name, or the same name."""
        return self._unmasked(
            shown, [queue.name for queue in queues.list_queues(self.open_fleet())]
        )

    def _unmasked(self, shown: str, names: Sequence[str]) -> str:
        return next((name for name in names if self._redactor.text(name) == shown), shown)

    def open_fleet(self) -> Fleet:
        """Return the fleet, opened.

        :raises NotFound: if the dashboard has no broker.
        :raises TransportFailure: if the broker cannot be reached.
        """
        if self._fleet is None:
            raise exceptions.NotFound("The dashboard has no broker.")
        with self._lock:
            if not self._is_open:
                self._fleet.open()
                self._is_open = True
        return self._fleet

    def rows(self, limit: int, after: str | None, state: str | None) -> RowPage | None:
        """Return a page of the ledger like `ledgers.rows`, or None without a ledger.

        :raises ValueError: if an argument is not valid.
        :raises LedgerFailure, TransportFailure: if the ledger cannot be read.
        """
        with _ledgers.open_ledger(self._ledger, self.open_fleet().target) as ledger:
            if ledger is None:
                return None
            page = _ledgers.rows(ledger, limit, after, state)
            return RowPage(tuple(redacted(page.rows, self._redactor)), page.after)

    def close(self) -> None:
        with self._lock:
            if self._is_open and self._fleet is not None:
                self._fleet.close()
            self._is_open = False
