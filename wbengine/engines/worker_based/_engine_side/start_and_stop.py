"""Start and stop the connection, the ledger and the consumer's thread of an executor.

Any thread may call it. `_serve` runs in the consumer's thread.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from wbengine import exceptions as exc
from wbengine._concurrency import conditions, forks, threads
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.engines.worker_based._connections import connecting, consumer_loop
from wbengine.engines.worker_based._discovery.clock_differences import Clocks
from wbengine.engines.worker_based._discovery.finder import ProxyWorkerFinder
from wbengine.engines.worker_based._engine_side.ledger_operations import LedgerWriter
from wbengine.engines.worker_based._engine_side.locked_tracker import FlowGuards, LockedTracker
from wbengine.engines.worker_based._engine_side.tracker_events import TrackerEvents
from wbengine.engines.worker_based.proxy import Proxy

LOG = logging.getLogger(__name__)

#: Maximum seconds that `stop` waits for publishing.
FLUSH_TIMEOUT_SECONDS: Final = 5.0


class LifeCycle:
    """Runs an executor while engines use it, or from `start` until `stop`.

    :param ledger: the checked place of the ledger.
    :param result_ttl: see `ledger.open_ledger`.
    """

    def __init__(
        self,
        requests: LockedTracker,
        events: TrackerEvents,
        proxy: Proxy,
        finder: ProxyWorkerFinder,
        writer: LedgerWriter,
        guards: FlowGuards,
        *,
        ledger: str | None,
        result_ttl: float | None,
    ) -> None:
        self._requests = requests
        self._events = events
        self._proxy = proxy
        self._finder = finder
        self._writer = writer
        self._guards = guards
        self._ledger_place = ledger
        self._result_ttl = result_ttl
        self._thread: threading.Thread | None = None
        # The process of this thread.
        self._pid = 0
        self._stopping = False
        # Number of engines that use the executor, and whether it runs without any.
        self._users = 0
        self._is_kept = False
        self._users_lock = threading.RLock()

    def check_process(self) -> None:
        """Check that this process is not a fork: it has no threads, and shares the connections.

        :raises InvalidState: if the executor was started before a fork.
        """
        if self.is_inherited:
            raise exc.InvalidState(
                f"this executor was started in process {self._pid}, and cannot be used in its fork"
                f" {forks.current_pid}: create an executor after the fork"
            )

    @property
    def is_inherited(self) -> bool:
        """Whether a parent of this process has started the executor."""
        return self._thread is not None and self._pid != forks.current_pid

    def start(self) -> None:
        self.check_process()
        self._is_kept = True
        self._start()

    def attach(self) -> None:
        self.check_process()
        with self._users_lock:
            self._start()
            self._users += 1

    def detach(self) -> None:
        if self.is_inherited:
            return
        with self._users_lock:
            self._users -= 1
            if not (self._users or self._is_kept):
                self.stop()

    def take_name(self, uuid: str) -> bool:
        """Rename an executor that is not started; return False if it is."""
        self.check_process()
        with self._requests.lock:
            if self._thread is not None:
                return False
            self._finder.uuid = uuid
            self._requests.tracker.inherit(uuid)
            self._proxy.renew(uuid)
        return True

    def _start(self) -> None:
        if self._stopping:  # An interrupt ended an earlier `stop` early.
            self.stop()
        try:
            with self._requests.lock:
                if self._thread is None:
                    self._begin()
            self._proxy.wait()
        except BaseException:
            self.stop()
            raise

    def _begin(self) -> None:
        tracker, target = self._requests.tracker, self._proxy.target
        tracker.reopen()
        if self._proxy.consumer.has_ended:
            self._proxy.renew(self._finder.uuid)
        ledger = connecting.call_with_retries(
            lambda: ledgers.choose(self._ledger_place, target, result_ttl=self._result_ttl),
            target.retry,
            conditions.Event(),
            within=consumer_loop.CONNECT_TIMEOUT_SECONDS,
            on_failure=connecting.log_reasons("cannot open the ledger (%s), retrying"),
        )
        target.rows.ledger = ledger
        broker_opens = ledger is not None and target.has_rows
        self._writer.use(ledger, self._proxy.signer, broker_opens=broker_opens)
        tracker.use_ledger(ledger.digest if ledger is not None else None)
        tracker.separate_ledger = ledger is not None and not target.has_rows
        # Without a ledger, the clocks of the hosts are compared.
        self._finder.clocks = Clocks(self._finder.outage_seconds) if ledger is None else None
        thread = threads.Thread(
            target=self._serve, name=f"wbengine-executor-{self._finder.uuid}", daemon=True
        )
        self._pid = forks.current_pid
        try:
            thread.start()
        finally:  # also after an interrupt
            self._thread = None if thread.ident is None else thread

    def _serve(self) -> None:
        try:
            self._proxy.start()
        except exc.TransportFailure:
            pass  # `Proxy.wait` raises it in the thread that called `start`.
        except BaseException:
            LOG.exception("the connection of the executor ended with an error")
        finally:
            with self._requests.lock:
                effects = self._requests.tracker.close(
                    "its executor stopped", kept_flows=self._guards.flows
                )
            self._requests.apply(effects)

    def stop(self) -> None:
        if self.is_inherited:
            return
        self._is_kept = False
        with self._requests.lock:
            thread = self._thread
        if thread is None:
            return
        self._stopping = True
        self._proxy.consumer.keeps_queue = not (
            self._guards.reads_replies() or self._proxy.target.is_native
        )
        self._proxy.stop(FLUSH_TIMEOUT_SECONDS)
        if thread is not threading.current_thread():
            thread.join()
        self._writer.close()
        with self._requests.lock:
            if self._thread is not thread:
                return  # Another call has stopped it.
            self._thread = None
        self._stopping = self._guards.disowned = False
        self._events.reset()
