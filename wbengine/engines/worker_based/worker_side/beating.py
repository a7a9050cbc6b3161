"""When a worker says that it lives: to engines, and to its ledger."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Final

from futurist import periodics

from wbengine import exceptions as exc
from wbengine.engines.worker_based.ledger import base as ledgers
from wbengine.engines.worker_based.messages import envelope as env

__all__ = ["PERIOD", "Beats"]

LOG = logging.getLogger(__name__)

#: Seconds between two beats, unless an engine asks for more frequent ones.
PERIOD: Final = 5.0


class Beats:
    """The thread that beats, and never runs tasks: `beat(now)` is called when one is due.

    Whoever beats within a `period` is not taken for lost within another: what is claimed now is
    certainly not given to somebody else until a period from now.  All times are those of one
    monotonic clock.
    """

    def __init__(self, identity: str, beat: Callable[[float], None]) -> None:
        self._identity = identity
        self._beat = beat
        self.period = PERIOD
        #: Where it has to say that it lives, besides.
        self.ledger: ledgers.Ledger | None = None
        #: When it should be said again there.
        self.due = -math.inf
        # Whether it could not be when that was tried last.
        self._ailing = False
        self._worker: periodics.PeriodicWorker | None = None
        self._changing = threading.Lock()

    def start(self, *, at_once: bool = True) -> None:
        """Begin, with a beat or, unless `at_once`, a period from now."""
        # A lambda: futurist sets attributes on what it calls, a bound method takes none.
        beat = periodics.periodic(self.period, run_immediately=at_once)(
            lambda: self._beat(time.monotonic())
        )
        self._worker = periodics.PeriodicWorker([(beat, (), {})])
        threading.Thread(target=self._worker.start, name="wbengine-beats", daemon=True).start()

    def stop(self) -> None:
        if self._worker is not None:
            self._worker.stop()
            self._worker = None

    def obey(self, envelope: env.Envelope) -> None:
        """Beat as often as an engine wants it, if that is more often than until now."""
        asked = envelope.seconds(env.WBE_PERIOD)
        if asked is None or asked >= self.period or self.period <= env.LEAST_PERIOD:
            return
        with self._changing:
            before, self.period = self.period, max(env.LEAST_PERIOD, min(asked, self.period))
            self.due -= (before - self.period) / 2
            if self._worker is not None and self.period < before:
                self.stop()
                self.start(at_once=False)

    def renew(self, now: float) -> None:
        """Tell the ledger that this worker lives, unless it was told a moment ago.

        Never raises for a ledger that is away: it is told with the next beat.
        """
        if self.ledger is None or now < self.due:
            return
        try:
            self.ledger.renew(self._identity)
        except exc.LedgerFailure as error:
            if not self._ailing:
                LOG.warning("the ledger cannot be told that this worker lives: %s", error)
            self._ailing = True
        else:
            self.due = now + self.period / 2
            self._ailing = False
