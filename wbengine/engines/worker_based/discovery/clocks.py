"""Clocks of other hosts, where something depends on them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from wbengine._clock import Clock
from wbengine.engines.worker_based.messages import envelope as env

__all__ = ["MOST", "Clocks"]

LOG = logging.getLogger(__name__)

#: Seconds that the clocks of two hosts may differ before it is worth a line in the log.
MOST: Final = 30.0


class Clocks:
    """Name workers in the log, once each, whose clocks differ much from this host's.

    `missed(since, now)` tells how long nothing could be heard: what waited somewhere was written
    long before it came.
    """

    def __init__(self, missed: Callable[[float, float], float]) -> None:
        self._missed = missed
        self._named: set[Any] = set()

    def check(self, identity: Any, notify: env.Envelope, clock: Clock) -> None:
        """Look at the time that a worker tells."""
        told = notify.seconds(env.WBE_TIME)
        if told is None or identity in self._named:
            return
        ahead = told - clock.time()
        now = clock.monotonic()
        if abs(ahead) <= MOST or self._missed(now - 2 * abs(ahead), now):
            return
        self._named.add(identity)
        LOG.warning(
            "the clock of worker %s is %.0f s %s: without a ledger, the time after which a task is"
            " not to be started any more is read there",
            *(identity, abs(ahead), "ahead" if ahead > 0 else "behind"),
        )
