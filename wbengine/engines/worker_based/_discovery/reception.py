"""Whether this engine receives messages, and when it received none."""

from __future__ import annotations

import math
import threading
from collections import deque
from typing import Any, Final

_MAX_OUTAGES: Final = 64

#: Minimum delay in seconds after which an iteration of the engine's loop is late.
_MIN_LATE_SECONDS: Final = 2.0


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
