"""How an executor begins and ends, for one engine or several."""

from __future__ import annotations

import logging
import threading
from typing import Final

from wbengine import exceptions as exc
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.engines.worker_based.discovery import clocks
from wbengine.engines.worker_based.engine_side import overview
from wbengine.engines.worker_based.requests import ledger_rows
from wbengine.engines.worker_based.requests.options import RequestOptions

__all__ = ["Tenure"]

LOG = logging.getLogger(__name__)

#: Seconds that `stop` gives to what is still to be published.
FLUSH_TIMEOUT: Final = 5.0


class Tenure(overview.Overview):
    """An executor that runs while somebody uses it: with a proxy in a thread, and a ledger."""

    _options: RequestOptions
    _place: str | None
    _expiry: float | None
    _round_due: float

    def __init__(self) -> None:
        super().__init__()
        self._thread: threading.Thread | None = None
        #: Where rows can be made in one step with publishing their requests: see `Ledger.openings`.
        self._openings: object = None
        self._stopping = False
        # How many engines use it, and whether whoever made it wants it to run without any.
        self._users = 0
        self._kept = False
        self._users_lock = threading.RLock()

    def _reads(self) -> bool:
        raise NotImplementedError

    def start(self) -> None:
        """Start the threads that speak with the broker, and let them run until `stop`.

        :raises TransportFailure: the broker cannot be reached.
        :raises LedgerFailure: nor the ledger that was named.
        """
        self._kept = True
        self._start()

    def enlist(self) -> None:
        """An engine begins to use it: start unless it runs.

        :raises TransportFailure, LedgerFailure: as `start`; then it does not use it.
        """
        with self._users_lock:
            self._start()
            self._users += 1

    def dismiss(self) -> None:
        """An engine that was enlisted is done: stop with the last of them, unless `start` was
        called.
        """
        with self._users_lock:
            self._users -= 1
            if not (self._users or self._kept):
                self.stop()

    def _start(self) -> None:
        if self._stopping:  # an interruption ended that early
            self.stop()
        with self._lock:
            if self._thread is None:
                self._begin()
        try:
            self._proxy.wait()
        except BaseException:
            self.stop()
            raise

    def _begin(self) -> None:
        self._tracker.reopen()
        if self._proxy.ended:
            self._proxy = self._make_proxy()
        self._ledger = ledgers.choose(
            self._place, self._proxy.target, result_ttl=self._options.result_ttl
        )
        self._tracker.ledger = self.ledger
        place = self._proxy.target.redis
        self._openings = self._ledger.openings(place) if self._ledger is not None else None
        # Clocks of two hosts are compared only where nothing else tells what happened first.
        self._finder.clocks = clocks.Clocks(self._finder.missed) if self._ledger is None else None
        self._rows = (
            ledger_rows.Rows(self._ledger, self._expiry) if self._ledger is not None else None
        )
        self._thread = threading.Thread(
            target=self._serve, name=f"wbengine-executor-{self._uuid}", daemon=True
        )
        self._thread.start()

    def _serve(self) -> None:
        try:
            self._proxy.start()
        except exc.TransportFailure:
            pass  # `Proxy.wait` hands it to whoever starts the executor
        except BaseException:
            LOG.exception("the executor's connection ended")
        finally:
            with self._lock:
                effects = self._tracker.close("its executor stopped", kept=self._guards)
            self._apply(effects)

    def stop(self) -> None:
        """Publish what is queued, fail what is unfinished, disconnect.

        Where an interruption (Ctrl-C) ended it early, the next call goes on.
        """
        self._kept = False
        with self._lock:
            thread = self._thread
        if thread is None:
            return
        self._stopping = True
        self._proxy.leaves_queue = not (self._reads() or self._proxy.target.ours)
        self._proxy.stop(FLUSH_TIMEOUT)
        if thread is not threading.current_thread():
            thread.join()
        with self._lock:
            if self._thread is not thread:
                return  # another call did the rest
            self._thread = None
        self._stopping = self._disowned = False
        self._finder.reset()
        self._round_due = 0.0
        if self._ledger is not None:
            self._drop_again()
            self._ledger.close()
