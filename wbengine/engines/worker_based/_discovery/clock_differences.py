"""Comparison of the clocks of workers with the clock of this host."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from wbengine._concurrency.clocks import Clock
from wbengine.engines.worker_based._discovery import roster

LOG = logging.getLogger(__name__)

#: Clock difference above which a warning is logged.
MAX_CLOCK_DIFFERENCE_SECONDS: Final = 30.0


class Clocks:
    """Logs, once for each worker, that its clock differs much from this host's clock.

    `outage_seconds(since, now)` returns the seconds in which this engine received nothing. Messages
    that waited in that time have old timestamps.
    """

    def __init__(self, outage_seconds: Callable[[float, float], float]) -> None:
        self._outage_seconds = outage_seconds
        self._reported: set[Any] = set()

    def check(self, identity: Any, reported_time: float | None, clock: Clock) -> None:
        if reported_time is None or identity in self._reported:
            return
        ahead = reported_time - clock.time()
        if abs(ahead) <= MAX_CLOCK_DIFFERENCE_SECONDS or len(self._reported) >= roster.MAX_WORKERS:
            return
        now = clock.monotonic()
        if self._outage_seconds(now - 2 * abs(ahead), now):
            return
        self._reported.add(identity)
        LOG.warning(
            "the clock of worker %s is %.0f s %s: without a ledger, the worker decides by"
            " this clock whether a task has expired",
            *(identity, abs(ahead), "ahead" if ahead > 0 else "behind"),
        )
