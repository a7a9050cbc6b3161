"""When workers are queried, whether this engine receives messages, and which workers are silent.

The silence of a worker counts only while the engine receives its own messages. All times are on one
monotonic clock.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from wbengine.engines.worker_based._discovery.roster import TopicWorker

#: Number of missing heartbeats after which a worker with a known period is lost.
SILENT_PERIODS: Final = 3

#: Minimum interval between two NOTIFY of the engine, in seconds for each known worker.
#: RELAXED_FACTOR multiplies the interval while no result is urgent.
SECONDS_PER_WORKER: Final = 0.01
RELAXED_FACTOR: Final = 6

#: Interval between two NOTIFY in seconds while the tracker is searching for requests, or for a
#: number of periods after an outage.
URGENT_SECONDS: Final = 1.0
_AFTERMATH_PERIODS: Final = 3

_MAX_OUTAGES: Final = 64

#: Minimum delay in seconds after which an iteration of the engine's loop is late.
_MIN_LATE_SECONDS: Final = 2.0


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


class Reception:
    """Records outages: periods in which the engine received no messages or did not run.

    There are three signs of an outage. An echo, which the engine sends to itself, is overdue: no
    messages arrive. An iteration of the loop is late: the process was paused. The loop has another
    channel than before: the connection to the broker was lost.

    Thread-safe; a single thread records the iterations of the loop.

    :param period: interval of echoes in seconds.
    """

    def __init__(self, period: float) -> None:
        self._lock = threading.Lock()
        self._echo_limit = 2 * period
        self._iteration_limit = max(_MIN_LATE_SECONDS, period)
        self._outages: deque[tuple[float, float]] = deque(maxlen=_MAX_OUTAGES)
        self._last_echo: float | None = None
        self._last_iteration = math.inf
        self._channel: Any = None

    def record_echo(self, now: float) -> bool:
        """Record an echo; return whether it ends an outage."""
        with self._lock:
            previous, self._last_echo = self._last_echo, now
            if previous is None or now - previous <= self._echo_limit:
                return False
            self._add_outage(previous, now)
        return True

    def record_loop_iteration(self, now: float, channel: Any) -> bool:
        """Record an iteration of the loop on this channel; return whether it ends an outage."""
        previous, self._last_iteration = self._last_iteration, now
        is_new_channel, self._channel = self._channel is not channel, channel
        if now - previous <= self._iteration_limit and not (is_new_channel and previous < now):
            return False
        with self._lock:
            self._add_outage(previous, now)
        return True

    def is_interrupted(self, now: float) -> bool:
        """Return whether the echo is overdue."""
        return self._last_echo is None or now - self._last_echo > self._echo_limit

    def outage_seconds(self, since: float, now: float) -> float:
        """Return the seconds of outages since `since`."""
        with self._lock:
            seconds = sum(
                max(0.0, min(end, now) - max(start, since)) for start, end in self._outages
            )
            if self._last_echo is not None and now - self._last_echo > self._echo_limit:
                seconds += max(0.0, now - max(self._last_echo, since))
        return seconds

    def _add_outage(self, start: float, end: float) -> None:
        if self._outages:
            # Outages may overlap: a pause also delays the echo.
            start = max(start, self._outages[-1][1])
        if end > start:
            self._outages.append((start, end))


class Silence:
    """Rules for silent workers, and the watched workers, which never announced themselves.

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

    def take_lost(self, now: float) -> list[TopicWorker]:
        """Remove and return the watched workers that are silent for too long."""
        lost = [name for name, seen in self.watched.items() if now - seen > self.patience]
        return [worker for name in lost for worker in self.stop_watching(name)]

    def restart_grace(self, now: float) -> None:
        self.watched = dict.fromkeys(self.watched, now)
