"""The deletion of ended flows in `wbengine serve`."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from wbengine import states
from wbengine.operations import _retention
from wbengine.persistence import base

__all__ = ["RetentionService"]

LOG: Final = logging.getLogger(__name__)


class RetentionService:
    """Deletes ended flows by age and number. One of the services of a store works at a time.

    Each transaction deletes so many flows that it takes about `TRANSACTION_SECONDS` of this thread.
    Then the service pauses for the same time, so that other writers of the store have their turn.

    :param owner: name of this process in the store.
    """

    DUTY: Final = "retention"
    #: Pause of all services of a store between two runs.
    PERIOD_SECONDS: Final = 60.0
    #: Interval at which flows are counted and expired unique keys are deleted.
    COUNT_SECONDS: Final = 600.0
    #: Time after which another service continues the work of one that died.
    CLAIM_SECONDS: Final = 60.0
    TRANSACTION_SECONDS: Final = 0.01
    MAX_FLOWS_PER_TRANSACTION: Final = 200

    def __init__(
        self, persistence: base.Backend, retention: _retention.Retention, owner: str
    ) -> None:
        self._persistence = persistence
        self._retention = retention
        self._owner = owner
        self._count_due = 0.0
        #: Number of flows that this process deleted.
        self.deleted = 0

    def run_due(self, wait: Callable[[float], bool]) -> float:
        """Delete what is due, if no other process does. Return the seconds until the next call.

        :param wait: waits for a number of seconds; returns True if the service has to stop.
        :raises StorageFailure: if the store fails.
        """
        with contextlib.closing(self._persistence.get_connection()) as connection:
            if not connection.claim_duty(self.DUTY, self._owner, self.CLAIM_SECONDS):
                return self.PERIOD_SECONDS
            deleted, is_complete = self.deleted, self._run(connection, wait)
            if self.deleted > deleted:
                LOG.info("retention deleted %d flows", self.deleted - deleted)
            pause = self.PERIOD_SECONDS if is_complete else 0.0
            note = {"at": connection.now()} if is_complete else connection.duty_note(self.DUTY)
            connection.end_duty(self.DUTY, self._owner, pause, note)
        return self.PERIOD_SECONDS

    @property
    def latest_run(self) -> float | None:
        """Time in Unix seconds at which a service of the store completed a run, or None."""
        with contextlib.closing(self._persistence.get_connection()) as connection:
            at = connection.duty_note(self.DUTY).get("at")
        return at if isinstance(at, int | float) else None

    def _run(self, connection: base.Connection, wait: Callable[[float], bool]) -> bool:
        """Delete what is due. Return False if the service has to stop before the end."""
        now = connection.now()
        before = {state: now - age for state, age in self._retention.seconds.items()}
        if not self._delete(connection, before, float("inf"), wait):
            return False
        if time.monotonic() < self._count_due:
            return True
        most = self._retention.max_flows
        excess = 0 if most is None else connection.count_flows() - most
        if not self._delete(connection, dict.fromkeys(states.FLOW_ENDED, now), excess, wait):
            return False
        connection.delete_expired_keys()
        self._count_due = time.monotonic() + self.COUNT_SECONDS
        return True

    def _delete(
        self,
        connection: base.Connection,
        before: Mapping[str, float],
        most: float,
        wait: Callable[[float], bool],
    ) -> bool:
        batch, since = 1, 0.0
        renewal_due = time.monotonic() + self.CLAIM_SECONDS / 3
        while most > 0:
            began = time.thread_time()  # Without the time that this thread waits for the store.
            limit = int(min(batch, most))
            deleted, until = _retention.delete_ended(connection, before, limit, since)
            if not deleted:
                if not since:
                    return True
                since = 0.0  # Again from the start: children of deleted flows ended before them.
                continue
            since = until
            self.deleted += deleted
            most -= deleted
            seconds = max(1e-4, time.thread_time() - began)
            fitting = int(deleted * self.TRANSACTION_SECONDS / seconds)
            batch = max(1, min(fitting, 2 * deleted, self.MAX_FLOWS_PER_TRANSACTION))
            if wait(seconds):
                return False
            if time.monotonic() >= renewal_due:
                if not connection.claim_duty(self.DUTY, self._owner, self.CLAIM_SECONDS):
                    return False  # This process stood still, and another one continued the work.
                renewal_due = time.monotonic() + self.CLAIM_SECONDS / 3
        return True
