"""Which workers are lost: they were silent for too long.

This module only detects them. `_requests.recovery` decides what happens to their requests.

The silence of a worker counts only while the engine receives its own messages. All times are on one
monotonic clock.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from typing import Any, Final

from wbengine.engines.worker_based._discovery.roster import Roster, TopicWorker

LOG = logging.getLogger(__name__)

#: Number of missing heartbeats after which a worker with a known period is lost.
SILENT_PERIODS: Final = 3


class LossDetector:
    """Rules that declare silent workers lost, and the watched workers.

    A watched worker replied about a request, but never announced itself.

    :param period: the heartbeat period that the engine requests.
    :param expiry: seconds of silence after which a worker without a known period is lost; None:
        workers are never lost.
    :param has_requests: see `ProxyWorkerFinder`.
    :ivar patience: seconds after which a worker without any message is lost.
    :ivar watched: the time of the last message of each watched worker.
    """

    def __init__(
        self, period: float, expiry: float | None, has_requests: Callable[[str], bool]
    ) -> None:
        self._expiry = math.inf if expiry is None else expiry
        self._has_requests = has_requests
        self.patience = math.inf if expiry is None else SILENT_PERIODS * period
        self.watched: dict[Any, float] = {}

    def is_report_late(self, workers: Iterable[TopicWorker], now: float) -> bool:
        """Return whether an expected report of a worker is more than a period late."""
        return bool(self.watched) or any(
            now - worker.last_seen > (worker.period or math.inf)
            and self._has_requests(worker.identity)
            for worker in workers
        )

    def silent(self, workers: Iterable[TopicWorker], now: float, queried_since: float) -> set[Any]:
        """Return the keys of the processes of silent workers.

        :param queried_since: time of the first of the queries that a worker without requests must
            have ignored.
        """
        return {worker.key[0] for worker in workers if self._is_silent(worker, now, queried_since)}

    def _is_silent(self, worker: TopicWorker, now: float, queried_since: float) -> bool:
        period = worker.period
        if period is not None and now - worker.last_seen <= SILENT_PERIODS * period:
            return False  # The usual case, checked first.
        seen = max(worker.last_seen, worker.last_reply)
        if period is None:
            return now - seen > self._expiry
        if not self._has_requests(worker.identity):  # It only replies to NOTIFY.
            return seen < queried_since
        return now - seen > SILENT_PERIODS * period

    def stop_watching(self, identity: Any) -> list[TopicWorker]:
        """Return an entry for the worker if it was watched."""
        was_watched = self.watched.pop(identity, None) is not None
        return [TopicWorker("", (), identity)] if was_watched else []

    def remove(self, roster: Roster, silent: Iterable[Any], now: float) -> list[TopicWorker]:
        """Declare silent workers lost: remove and return them, and watched workers.

        :param silent: keys of processes, see `silent`.
        """
        lost = [worker for identity in silent for worker in roster.leave(identity)]
        for worker in lost:
            LOG.warning("lost %r: no message for %.1f s", worker, now - worker.last_seen)
        for name in [name for name, seen in self.watched.items() if now - seen > self.patience]:
            LOG.warning("lost worker %s, which never announced itself", name)
            lost += self.stop_watching(name)
        return lost

    def restart_grace(self, now: float) -> None:
        self.watched = dict.fromkeys(self.watched, now)
