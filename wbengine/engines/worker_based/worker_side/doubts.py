"""Rows of which a worker has to ask its ledger again."""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from wbengine import exceptions as exc
from wbengine.engines.worker_based import proxy
from wbengine.engines.worker_based.worker_side import beating

if TYPE_CHECKING:
    from wbengine.engines.worker_based.worker_side import jobs

__all__ = ["LEDGER_PAUSE", "Doubts"]

LOG = logging.getLogger(__name__)

#: Seconds before a request goes back to its queue whose ledger could not be asked.
LEDGER_PAUSE: Final = 0.5


class Doubts:
    """What is done about jobs that may not be this worker's; for its `Performer`, on any thread."""

    def __init__(
        self, hands: Any, wire: proxy.Proxy, beats: beating.Beats, closed: threading.Event
    ) -> None:
        self._hands = hands
        self._proxy = wire
        self._beats = beats
        self._closed = closed

    def check(self, job: jobs.Job) -> None:
        """Whether its row is ours still; its slot waits with it for a ledger that is away."""
        hands = self._hands
        while True:
            job.fresh = time.monotonic() + self._beats.period
            try:
                row = hands.ledger.state(job.id)
                break
            except exc.LedgerFailure as error:
                LOG.warning("request %s waits for its ledger: %s", job.id, error)
                if self._closed.wait(LEDGER_PAUSE):
                    return
        with hands.lock:
            effects = hands.core.on_checked(job, row)
        hands.apply(effects)

    def release(self, job: jobs.Job) -> None:
        """Let go of its row, as if nobody had claimed it; never waits for a ledger that is away."""
        hands = self._hands
        released = False
        try:
            released = hands.ledger.release(job.id, job.epoch, hands.core.identity)
        except exc.LedgerFailure as error:
            LOG.warning("request %s cannot be given back: %s", job.id, error)
        if not released:
            job.fresh = -math.inf  # it may be anybody's: its slot asks before it runs it
        with hands.lock:
            effects = hands.core.on_released(job, released)
        hands.apply(effects)

    def let_go(self, job: jobs.Job) -> None:
        """It could not be claimed: somebody else may have more luck."""
        hands = self._hands
        with hands.lock:
            hands.core.forget(job)
        # Whatever ails the ledger, asking it again at once would only burn the processor.
        self._closed.wait(LEDGER_PAUSE)
        self._proxy.requeue(job.receipt, hands.returned)
