"""The execution of operations on many flows in `wbengine serve`."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Mapping
from typing import Final

from wbengine.operations import _bulk
from wbengine.persistence import base
from wbengine.persistence._bulk_records import COMPLETE, RUNNING

__all__ = ["BulkService"]

LOG: Final = logging.getLogger(__name__)

_RESULTS: Final = ("done", "skipped")


class BulkService:
    """Carries out stored operations on many flows, and deletes old ones.

    Each operation is carried out by one of the services of a store at a time. A service advances
    all of its operations in turn, so that none waits for another one with a low rate.

    :param owner: name of this process in the store.
    """

    POLL_SECONDS: Final = 2.0
    #: Time for which operations are kept after their end, and interval of their deletion.
    KEEP_SECONDS: Final = 30 * 86400.0
    DELETE_SECONDS: Final = 3600.0

    def __init__(self, persistence: base.Backend, owner: str) -> None:
        self._persistence = persistence
        self._owner = owner
        self._runs: dict[str, _bulk.BulkRun] = {}
        self._deletion_due = 0.0
        names = tuple(_bulk.operations())
        #: Number of flows that this process handled, by operation and result: done or skipped.
        self.flows = Counter({(name, result): 0 for name in names for result in _RESULTS})
        #: Number of failed attempts of this process, by operation.
        self.errors = Counter(dict.fromkeys(names, 0))

    def run_due(self) -> float:
        """Carry out one batch of each operation that is due. Return the seconds until the next.

        :raises StorageFailure: if the store fails.
        """
        with contextlib.closing(self._persistence.get_connection()) as connection:
            running = connection.bulks.latest((RUNNING,), limit=1000)
            if time.monotonic() >= self._deletion_due:
                connection.bulks.delete_ended(connection.now() - self.KEEP_SECONDS)
                self._deletion_due = time.monotonic() + self.DELETE_SECONDS
        mine = {
            bulk.uuid: bulk
            for bulk in reversed(running)
            if bulk.owner in (None, self._owner) and _bulk.is_known(bulk)
        }
        # Another process may have taken an operation over, whose next batch is not due here.
        self._runs = {uuid: run for uuid, run in self._runs.items() if uuid in mine}
        for bulk in mine.values():
            run = self._runs.setdefault(
                bulk.uuid, _bulk.BulkRun(self._persistence, bulk, self._owner)
            )
            if run.due <= time.monotonic():
                self._advance(run)
        dues = [run.due for run in self._runs.values()]
        return max(0.0, min([*dues, time.monotonic() + self.POLL_SECONDS]) - time.monotonic())

    def running(self) -> Mapping[str, int]:
        """Return the number of operations in the store that are not complete, by name.

        :raises StorageFailure: if the store fails.
        """
        with contextlib.closing(self._persistence.get_connection()) as connection:
            running = connection.bulks.latest((RUNNING,), limit=1000)
        counts = Counter(bulk.operation for bulk in running)
        return {**dict.fromkeys(_bulk.operations(), 0), **counts}

    def release(self) -> None:
        """Let other processes continue the operations of this one at once."""
        for run in self._runs.values():
            run.release()
        self._runs.clear()

    def _advance(self, run: _bulk.BulkRun) -> None:
        operation = run.bulk.operation
        done, skipped = run.done, run.skipped
        try:
            is_advanced = run.advance()
        except Exception as error:  # The other operations continue.
            text = str(error) or type(error).__name__
            LOG.warning("cannot carry out operation %s now: %s", run.bulk.uuid, text)
            run.due = time.monotonic() + self.POLL_SECONDS
            self.errors[operation] += 1
            return
        self.flows[operation, "done"] += run.done - done
        self.flows[operation, "skipped"] += run.skipped - skipped
        if not is_advanced:
            del self._runs[run.bulk.uuid]
        elif run.bulk.state == COMPLETE:
            bulk = run.bulk
            LOG.info(
                "operation %s (%s) is complete: %d flows done, %d skipped",
                bulk.uuid, bulk.operation, bulk.done, bulk.skipped,
            )  # fmt: skip
            del self._runs[bulk.uuid]
