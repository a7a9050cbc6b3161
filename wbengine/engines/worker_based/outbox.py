"""What is to be published, and the thread that publishes it."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import kombu

from wbengine import exceptions as exc
from wbengine import transports
from wbengine._crash import crashpoint
from wbengine.engines.worker_based import confirms, connecting, topology
from wbengine.engines.worker_based import envelope as env
from wbengine.engines.worker_based import protocol as pr

LOG = logging.getLogger(__name__)

#: What ails the broker (a folder without room) or the ledger, rather than the parcel.
_AILMENTS: Final = (exc.TransportFailure, exc.LedgerFailure)

#: Seconds at most between two attempts to connect: what waits here waits for these, too.
_LONGEST: Final = 1.0

#: Seconds between two attempts to publish: a broker that ails may well accept connections.
_PAUSE: Final = 0.25


#: Writes a message, and says whether there was a queue for it.
Write = Callable[[env.Envelope], bool]


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

    What queues up while a write is under way goes out with the next one.  A RabbitMQ is asked to
    confirm what it got, and is sent more meanwhile.  A parcel that a lost connection or a full disk
    interrupted, or that the broker did not confirm in time, is published again, in its turn, unless
    it wants to be told that this is `uncertain`.
    """

    def __init__(self, target: transports.Target, layout: topology.Topology, name: str) -> None:
        self._target = target
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
        # Of a RabbitMQ: what is written and not confirmed, and what to ring while it is waited for.
        self._post: confirms.Post | None = None
        self._line: connecting.Line | None = None
        # One at a time, until something is confirmed: what goes wrong then is the fault of one, and
        # a broker that takes nothing is not given the same again and again.
        self._careful = False

    def put(self, parcel: Parcel, first: bool = False) -> None:
        with self._lock:
            (self._first if first else self._parcels).append(parcel)
            if not self._busy:
                self._wake()

    def _wake(self) -> None:
        self._changed.notify_all()
        if self._line is not None:
            self._line.ring()

    def flush(self, timeout: float | None) -> bool:
        """Wait until nothing is queued, being published, or not yet confirmed."""
        with self._lock:
            if self._thread is not None:
                self._changed.wait_for(lambda: self._idle or self._closed.is_set(), timeout)
            return self._idle

    @property
    def _idle(self) -> bool:
        if self._post is not None and not self._post.is_idle:
            return False
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
            self._wake()

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
            try:
                connection = connecting.reach(
                    self._target, self._closed, longest=_LONGEST, on_failure=self._tell
                )
            except exc.TransportFailure as error:
                self._tell(str(error))
                self._closed.wait(_PAUSE)
                continue
            self._errors = (*connection.recoverable_connection_errors, *_AILMENTS)
            try:
                with connection:
                    if self._target.amqp:
                        self._publish_confirmed(connection)
                    elif not self._closed.is_set():
                        self._publish(connection)
            except self._errors as error:
                self._tell(connecting.explain(error))
            except Exception:
                if self._closed.is_set():
                    return
                LOG.exception("failed to publish")
            self._closed.wait(_PAUSE)

    def _tell(self, why: str) -> None:
        if why != self._told and not self._closed.is_set():  # once, not with every attempt
            self._told = why
            LOG.warning("cannot publish (%s), trying again", why)

    # To brokers that confirm nothing: what was written without an error is published.

    def _publish(self, connection: kombu.Connection) -> None:
        channel = connection.channel()
        exchange = self._layout.declare_exchange(channel)
        self._declared.clear()
        write: Write
        if self._target.ours:
            write = functools.partial(_write_straight, channel, exchange.name)
        else:
            producer = kombu.Producer(channel, exchange=exchange, auto_declare=False)
            write = functools.partial(self._write, producer)
        while True:
            parcel = self._next()
            if parcel is None:
                return
            try:
                self._deliver(write, parcel)
            except self._errors:
                raise
            except Exception:
                LOG.exception("what follows the publishing of a message failed")

    def _deliver(self, write: Write, parcel: Parcel) -> None:
        if (parcel.withdrawn or parcel.before is not None) and not self._is_wanted(parcel):
            return
        crashpoint("outbox.before-publish")
        try:
            routed = write(parcel.envelope)
        except self._errors as error:
            if parcel.uncertain is not None and not isinstance(error, _AILMENTS):
                self._done(parcel)
                parcel.uncertain()
            raise  # any other stays where it is, and goes out on the next connection
        except Exception as error:
            self._fail(parcel, error)
            return
        crashpoint("outbox.after-publish")
        self._told = ""
        self._done(parcel)
        if not routed and parcel.unrouted is not None:
            parcel.unrouted()
        elif parcel.after is not None:
            parcel.after()

    def _is_wanted(self, parcel: Parcel) -> bool:
        """Whether a parcel is to be published now; one that is not has left the outbox."""
        wanted = not parcel.withdrawn
        if wanted and parcel.before is not None:
            try:
                wanted = parcel.before()
            except self._errors:
                raise
            except Exception as error:
                self._fail(parcel, error)
                return False
        if not wanted:
            self._done(parcel)
        return wanted

    def _fail(self, parcel: Parcel, error: Exception) -> None:
        LOG.error("a message cannot be published: %s", error)
        self._done(parcel)
        if parcel.failed is not None:
            parcel.failed(error)

    def _write(self, producer: Any, envelope: env.Envelope) -> bool:
        keys: Iterable[str] = (envelope.routing_key,)
        if self._layout.direct:
            now = time.monotonic()
            keys = self._layout.queues_of(producer.channel, envelope.routing_key, now)
        elif self._layout.interop:
            self._introduce(producer.channel, envelope)
        for key in keys:
            producer.publish(
                envelope.encoded,
                routing_key=key,
                content_type="application/json",
                content_encoding="utf-8",
                type=envelope.type,
                correlation_id=envelope.correlation_id,
                reply_to=envelope.reply_to,
                headers=envelope.headers,
                priority=envelope.priority,
            )
        return True  # as far as anybody can tell

    def _introduce(self, channel: Any, envelope: env.Envelope) -> None:
        """As TaskFlow's peers do, declare the queue of whoever is written to."""
        key, kind = envelope.routing_key, envelope.type
        if self._target.amqp:
            if kind == pr.RESPONSE:
                # Its engine may be about to come back, and waits for it; its queue went with it.
                self._declared.discard(key)
            elif kind != pr.NOTIFY or envelope.body:
                return  # of no use to who is not there: a RabbitMQ would keep that queue for ever
        if key not in self._declared:
            self._layout.declare_shared(channel, key)
            self._declared.add(key)

    # To a RabbitMQ: what was confirmed is published.

    def _publish_confirmed(self, connection: kombu.Connection) -> None:
        line = connecting.Line(connection)
        post = None
        try:
            window = 1 if self._careful else confirms.WINDOW
            post = confirms.Post(line, self._layout.exchange.name, self._confirmed, window)
            self._layout.declare_exchange(post.channel)
            self._declared.clear()
            with self._lock:
                self._line, self._post = line, post
            self._keep_sending(post)
        except Exception as error:
            line.drop()
            if post is not None:
                self._blame(post, error)
            if isinstance(error, self._errors):
                raise
            raise exc.TransportFailure(connecting.explain(error)) from error
        finally:
            with self._lock:
                self._line = None
            line.close()
            if post is not None:
                self._recall(post)

    def _keep_sending(self, post: confirms.Post) -> None:
        pause = 0.0
        while True:
            with self._lock:
                now = time.monotonic()
                waiting = self._first or self._parcels
                self._busy = bool(waiting) and post.has_room and now >= pause
                parcel = waiting[0] if self._busy else None
                if self._closed.is_set():
                    return
                if self._idle:
                    self._changed.notify_all()
            if parcel is None:
                post.read(max(0.01, pause - now) if pause > now else None)
                continue
            try:
                wanted = self._is_wanted(parcel)
            except self._errors as error:  # of the ledger, say: the connection is not to blame
                self._tell(connecting.explain(error))
                pause = time.monotonic() + _PAUSE
                continue
            if wanted:
                self._send(post, parcel)

    def _send(self, post: confirms.Post, parcel: Parcel) -> None:
        crashpoint("outbox.before-publish")
        if self._layout.interop:
            self._introduce(post.channel, parcel.envelope)
        try:
            message = post.prepare(parcel, plain=self._layout.interop is not None)
        except Exception as error:
            self._fail(parcel, error)
            return
        self._done(parcel)
        post.send(parcel, message)
        crashpoint("outbox.after-publish")

    def _confirmed(self, sent: confirms.Sent) -> None:
        parcel = sent.parcel
        self._told = ""
        if self._careful and self._post is not None:
            self._careful = False
            self._post.widen()
        if sent.returned and parcel.unrouted is not None:
            _call(parcel.unrouted)
        elif parcel.after is not None:
            _call(parcel.after)

    def _blame(self, post: confirms.Post, error: Exception) -> None:
        """What the broker would refuse for ever fails, as soon as it is known which one it is."""
        suspect = post.unconfirmed[0] if len(post.unconfirmed) == 1 else None
        if suspect is not None and self._careful and confirms.refuses(error):
            post.unconfirmed.clear()
            _call(lambda: self._fail(suspect.parcel, error))
        self._careful = bool(post.unconfirmed)

    def _recall(self, post: confirms.Post) -> None:
        """Nobody knows what became of what was written and not confirmed."""
        again = []
        for sent in post.unconfirmed:
            if sent.parcel.uncertain is None or self._closed.is_set():
                again.append(sent.parcel)
            else:
                _call(sent.parcel.uncertain)
        with self._lock:
            self._parcels.extendleft(reversed(again))
            self._post = None
            self._busy = False


def _write_straight(channel: Any, exchange: str, envelope: env.Envelope) -> bool:
    """What kombu's producer does, and nothing that our own transports have no use for."""
    properties = {
        "type": envelope.type,
        "correlation_id": envelope.correlation_id,
        "reply_to": envelope.reply_to,
        "delivery_mode": 2,
    }
    message = channel.prepare_message(
        envelope.encoded,
        envelope.priority,
        "application/json",
        "utf-8",
        envelope.headers,
        properties,
    )
    routed: bool = channel.basic_publish(message, exchange, envelope.routing_key)
    return routed


def _call(function: Callable[[], None]) -> None:
    try:
        function()
    except Exception:
        LOG.exception("what follows the publishing of a message failed")
