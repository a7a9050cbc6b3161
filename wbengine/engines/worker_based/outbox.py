"""What is to be published, and the thread that publishes it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import kombu

from wbengine import exceptions as exc
from wbengine._crash import crashpoint
from wbengine.engines.worker_based import connecting, topology
from wbengine.engines.worker_based import envelope as env

LOG = logging.getLogger(__name__)

#: What ails the broker (a folder without room) or the ledger, rather than the parcel.
_AILMENTS: Final = (exc.TransportFailure, exc.LedgerFailure)

#: Seconds between two attempts to publish: a broker that ails may well accept connections.
_PAUSE: Final = 0.25


@dataclass(slots=True, eq=False)
class Parcel:
    """One thing to be done in turn by the publisher's thread.

    `before()` runs first and may return False to leave the envelope unsent.  Then one of these
    runs: `after()` once it is published (where the broker confirms: once it did), `failed(error)`
    if it never can be, `unrouted()` if there was no queue for it, `uncertain()` if the connection
    was lost before the broker confirmed it; without the latter it is published again.  All run on
    the publisher's thread.  A parcel that was `withdrawn` in time is skipped.
    """

    envelope: env.Envelope
    before: Callable[[], bool] | None = None
    after: Callable[[], None] | None = None
    failed: Callable[[BaseException], None] | None = None
    unrouted: Callable[[], None] | None = None
    uncertain: Callable[[], None] | None = None
    sent: bool = False
    withdrawn: bool = False


class Outbox:
    """Publish parcels in order, on one connection of its own, for as long as it takes.

    What queues up while a write is under way goes out with the next one.  A parcel leaves the
    outbox only when it was published; one that a lost connection or a full disk interrupted is
    published again.
    """

    def __init__(
        self, connect: Callable[[], kombu.Connection], layout: topology.Topology, name: str
    ) -> None:
        self._connect = connect
        self._layout = layout
        self._name = name
        self._declared: set[str] = set()
        self._errors: Any = ()
        self._told = ""
        self._parcels: deque[Parcel] = deque()
        self._first: deque[Parcel] = deque()
        # Taken by itself: an interruption (Ctrl-C) within the condition's `__enter__`, which is
        # Python, would leave it locked for ever.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._closed = threading.Event()
        self._busy = False
        self._thread: threading.Thread | None = None

    def put(self, parcel: Parcel, first: bool = False) -> None:
        with self._lock:
            (self._first if first else self._parcels).append(parcel)
            if not self._busy:
                self._changed.notify_all()

    def flush(self, timeout: float | None) -> bool:
        """Wait until nothing is queued and nothing is being published."""
        with self._lock:
            if self._thread is not None:
                self._changed.wait_for(lambda: self._idle or self._closed.is_set(), timeout)
            return self._idle

    @property
    def _idle(self) -> bool:
        return not (self._parcels or self._first or self._busy)

    def start(self) -> None:
        self._thread = threading.Thread(
            target=self._run, name=f"wbengine-publisher-{self._name}", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Publish nothing more."""
        self._closed.set()
        with self._lock:
            self._changed.notify_all()

    def stop(self) -> None:
        """Close, and wait for the thread."""
        self.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _next(self) -> Parcel | None:
        with self._lock:
            self._busy = False
            if not (self._first or self._parcels):
                self._changed.notify_all()
                self._changed.wait_for(
                    lambda: self._first or self._parcels or self._closed.is_set()
                )
            if self._closed.is_set():
                return None
            self._busy = True
            return self._first[0] if self._first else self._parcels[0]

    def _done(self, parcel: Parcel) -> None:
        parcel.sent = True
        with self._lock:
            for queue in (self._first, self._parcels):
                if queue and queue[0] is parcel:
                    queue.popleft()

    def _run(self) -> None:
        while not self._closed.is_set():
            connection = self._connect()
            self._errors = (*connection.recoverable_connection_errors, *_AILMENTS)
            try:
                with connection:
                    connecting.reach(connection, self._closed, longest=5)
                    if not self._closed.is_set():
                        self._publish(connection)
            except self._errors as error:
                if str(error) != self._told:  # once, not with every attempt
                    self._told = str(error)
                    LOG.warning("cannot publish (%s), trying again", error)
            except Exception:
                if self._closed.is_set():
                    return
                LOG.exception("failed to publish")
            self._closed.wait(_PAUSE)

    def _publish(self, connection: kombu.Connection) -> None:
        channel = connection.channel()
        exchange = self._layout.declare_exchange(channel)
        self._declared.clear()
        producer = kombu.Producer(channel, exchange=exchange, auto_declare=False)
        while True:
            parcel = self._next()
            if parcel is None:
                return
            try:
                self._deliver(producer, parcel)
            except self._errors:
                raise
            except Exception:
                LOG.exception("what follows the publishing of a message failed")

    def _deliver(self, producer: Any, parcel: Parcel) -> None:
        if parcel.withdrawn or (parcel.before is not None and not self._prepared(parcel)):
            self._done(parcel)
            return
        crashpoint("outbox.before-publish")
        try:
            self._write(producer, parcel.envelope)
        except self._errors:
            raise  # the parcel stays where it is, and goes out on the next connection
        except Exception as error:
            self._fail(parcel, error)
            return
        crashpoint("outbox.after-publish")
        self._told = ""
        self._done(parcel)
        if parcel.after is not None:
            parcel.after()

    def _prepared(self, parcel: Parcel) -> bool:
        assert parcel.before is not None
        try:
            return parcel.before()
        except self._errors:
            raise
        except Exception as error:
            self._fail(parcel, error)
            return False

    def _fail(self, parcel: Parcel, error: Exception) -> None:
        LOG.error("a message cannot be published: %s", error)
        self._done(parcel)
        if parcel.failed is not None:
            parcel.failed(error)

    def _write(self, producer: Any, envelope: env.Envelope) -> None:
        if self._layout.interop and envelope.routing_key not in self._declared:
            # TaskFlow's peers declare the queue of whoever they write to.
            self._layout.declare_shared(producer.channel, envelope.routing_key)
            self._declared.add(envelope.routing_key)
        producer.publish(
            envelope.encoded,
            routing_key=envelope.routing_key,
            content_type="application/json",
            content_encoding="utf-8",
            type=envelope.type,
            correlation_id=envelope.correlation_id,
            reply_to=envelope.reply_to,
            headers=envelope.headers,
            priority=envelope.priority,
        )
