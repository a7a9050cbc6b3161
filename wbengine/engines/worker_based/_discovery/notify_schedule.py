"""When an engine sends NOTIFY to its workers, and the echo to itself."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final

from wbengine.engines.worker_based._discovery.lost_worker_detection import SILENT_PERIODS

#: Minimum interval between two NOTIFY of the engine, in seconds for each known worker.
#: RELAXED_FACTOR multiplies the interval while no result is urgent.
SECONDS_PER_WORKER: Final = 0.01
RELAXED_FACTOR: Final = 6

#: Interval between two NOTIFY in seconds while the tracker is searching for requests, or for a
#: number of periods after an outage.
URGENT_SECONDS: Final = 1.0
_AFTERMATH_PERIODS: Final = 3


class NotifySchedule:
    """Times of NOTIFY to all workers, and of the echo. `workers` is the number of known workers.

    :param period: the heartbeat period that the engine requests, in seconds.
    :param plain: the workers are TaskFlow's. Only one of several workers on a topic receives each
        NOTIFY.
    :ivar needs_reports: whether recent reports of workers are needed now.
    :ivar is_searching: whether a component waits for the next reports.
    :ivar waiters: one entry for each thread that waits for workers.
    :ivar queried_since: time of the first of the last NOTIFY that a live worker must have answered.
    """

    def __init__(self, period: float, *, plain: bool) -> None:
        self._period = period
        self._plain = plain
        self.needs_reports = True
        self.is_searching = False
        self.waiters: set[object] = set()
        self._aftermath_until = -math.inf
        self.reset()

    def reset(self) -> None:
        """Make NOTIFY and the echo due now."""
        self._last_notify = self._last_echo = -math.inf
        # Times of the last NOTIFY that were at least a period apart.
        times = SILENT_PERIODS + 1
        self._notify_times = deque([-math.inf] * times, maxlen=times)
        self.queried_since = -math.inf

    def record_outage(self, now: float) -> None:
        """Send NOTIFY more often for some time, because the engine needs all states again."""
        self._aftermath_until = now + _AFTERMATH_PERIODS * self._period

    def interval(self, workers: int) -> float:
        """Return the usual interval between two NOTIFY in seconds."""
        pace = max(self._period, SECONDS_PER_WORKER * workers)
        often = self.needs_reports or self.waiters or self._plain
        return pace if often else RELAXED_FACTOR * pace

    def _pause(self, now: float, workers: int) -> float:
        if self._plain or not (self.is_searching or now < self._aftermath_until):
            return self.interval(workers)
        return max(min(URGENT_SECONDS, self._period), SECONDS_PER_WORKER * workers)

    def take_notify(
        self, now: float, workers: int, is_report_late: Callable[[float], bool]
    ) -> bool:
        """Return whether NOTIFY is due; it then counts as sent.

        It is due earlier if a report is late.
        """
        since_last = now - self._last_notify
        if since_last < self._pause(now, workers) and not (
            since_last >= self._period and is_report_late(now)
        ):
            return False
        self._last_notify = now
        if now - self._notify_times[-1] >= self._period:
            self._notify_times.append(now)
            self.queried_since = self._notify_times[0]
        return True

    def take_echo(self, now: float) -> bool:
        """Return whether the echo is due; it then counts as sent."""
        if now - self._last_echo < self._period:
            return False
        self._last_echo = now
        return True

    def next_due(self, now: float, workers: int) -> float:
        return min(self._last_notify + self._pause(now, workers), self._last_echo + self._period)
