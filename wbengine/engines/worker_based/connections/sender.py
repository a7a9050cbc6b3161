"""What one side publishes: where it waits, and the connection that it goes out on."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import kombu

from wbengine import exceptions as exc
from wbengine import transports
from wbengine._crash import crashpoint
from wbengine.engines.worker_based.connections import connecting, topology
from wbengine.engines.worker_based.connections.outgoing import OutgoingMessage, by_hooks
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.transports import reasons
from wbengine.transports.broker import Broker, LaidOut

LOG = logging.getLogger(__name__)

#: Called with what was to be done of its kind.
Call = Callable[[list[Any]], object]

#: At most so many messages go out together, and about so many bytes.
BATCH: Final = 64
_BATCH_BYTES: Final = 1024 * 1024

#: So many batches are published by a thread that came with one message; the sender's own thread
#: goes on.
_ROUNDS: Final = 2

#: Seconds that a deferred message waits for others at most; and deferred calls.
DEFERRED: Final = 0.005
_CALLS_DEFERRED: Final = 0.02

#: Seconds between two attempts to publish: a broker that ails may well accept connections.
PAUSE: Final = 0.25

#: What ails the broker (a folder without room) or the ledger, rather than what is published.
_AILMENTS: Final = (exc.TransportFailure, exc.LedgerFailure)


class ReconnectLoop:
    """Connect to `target`, and use the connection, again and again until `closed`; of one thread.

    `errors` are those after which another connection may help.
    """

    def __init__(self, target: transports.Target, closed: threading.Event) -> None:
        self.errors: Any = ()
        self._target = target
        self._closed = closed
        #: Why it did not work, as was told last; a sender that publishes something clears it.
        self.told = ""

    def run(self, use: Callable[[Any], object]) -> None:
        """`use(connection)`, until it is closed; any thread may close it."""
        while not self._closed.is_set():
            try:
                connection = connecting.reach(self._target, self._closed, on_failure=self.tell)
            except exc.TransportFailure as error:
                self.tell(str(error))
                self._closed.wait(PAUSE)
                continue
            self.errors = (*connection.recoverable_connection_errors, *_AILMENTS)
            try:
                with connection:
                    if not self._closed.is_set():
                        use(connection)
            except self.errors as error:
                self.tell(reasons.explain(error))
            except Exception:
                if self._closed.is_set():
                    return
                LOG.exception("failed to publish")
            self._closed.wait(PAUSE)

    def tell(self, why: str) -> None:
        """It does not work; said once, not with every attempt.  Any thread."""
        if why != self.told and not self._closed.is_set():
            self.told = why
            LOG.warning("cannot publish (%s), trying again", why)


class Sender:
    """Publishes messages in order, on one connection of its own, for as long as it takes.

    A thread that sends finds the connection idle, and publishes its message with all that waits;
    or it finds it in use, and leaves the message to the thread that uses it.  The sender's own
    thread connects, again after each failure, and publishes what was deferred or left.

    What goes out together is prepared and told of together (`DeliveryHooks`).  A message that a
    lost connection or a full disk interrupted is published again, in its turn, unless its hooks
    want to be told that this is `uncertain`.
    """

    def __init__(self, target: transports.Target, layout: topology.Topology, name: str) -> None:
        self._target = target
        self._layout = layout
        self._name = name
        self._closed = threading.Event()
        self._reconnects = ReconnectLoop(target, self._closed)
        # All times are on the monotonic clock.
        self._queue: deque[OutgoingMessage] = deque()
        self._first: deque[OutgoingMessage] = deque()
        self._due = math.inf
        # Until when nothing is published, since preparing it failed.
        self._paused = -math.inf
        # What is to be done when nothing is to be published, and with what.
        self._calls: dict[Call, list[Any]] = {}
        self._call_count = 0
        self._calls_due = math.inf
        # Taken by itself: an interruption (Ctrl-C) within the condition's `__enter__`, which is
        # Python, would leave it locked for ever.
        self._lock = threading.RLock()
        self._woken = threading.Condition(self._lock)
        self._settled = threading.Condition(self._lock)
        #: Called in the thread that publishes when there was no exchange, or no queue for
        #: something: perhaps what this side declared is gone, too.
        self.astray: Callable[[], None] = _nothing
        self._writer: Any = None
        # Whether some thread publishes, and whether the sender's makes deferred calls.
        self._sending = False
        self._calling = False
        self._flushing = 0
        self._over = False
        # What another thread found out about the connection.
        self._lost: BaseException | None = None
        # When the sender's thread looks again by itself; never earlier while it is awake.
        self._looks_at = -math.inf
        self._deferred = False
        self._thread: threading.Thread | None = None

    # Any thread.

    def send(self, message: OutgoingMessage, *, first: bool = False, defer: bool = False) -> None:
        """Publish a message: in this thread, together with all that waits, or by the thread that
        publishes already.  Never raises for a broker that is away, which only delays it.

        Messages go out in the order in which they came, except that `first` ones (beats) pass all
        others.  `defer`: within some milliseconds, with what comes meanwhile, and not in this
        thread, which may hold locks; with the next one that is not deferred, if that is sooner.
        """
        mine = False
        try:
            with self._lock:
                (self._first if first else self._queue).append(message)
                if defer:
                    self._deferred = True
                    self._due = min(self._due, time.monotonic() + DEFERRED)
                    self._rouse()
                    return
                self._due = -math.inf
                if self._sending:
                    return
                if not self._is_free or self._paused > time.monotonic():
                    self._rouse()
                    return
                mine = self._sending = True  # in this order: it may be interrupted (Ctrl-C)
            self._publish_some(_ROUNDS)
        except BaseException:  # an interruption: what it leaves is the sender's own thread's
            with self._lock:
                self._due = -math.inf
                self._rouse()
            raise
        finally:
            if mine:
                self._sending = False  # here: an interruption could end a call before it began
                self._release()

    def call_later(self, function: Call, *things: Any) -> None:
        """`function([thing, ...])` in the sender's thread, some milliseconds later, with all things
        that came meanwhile, when nothing is to be published; at once when it has ended.  What it
        raises is logged.
        """
        with self._lock:
            if not self._over:
                if not self._call_count:
                    self._calls_due = time.monotonic() + _CALLS_DEFERRED
                self._call_count += len(things)
                self._calls.setdefault(function, []).extend(things)
                if self._calls_due < self._looks_at or self._call_count >= BATCH:
                    self._rouse()
                return
        call(function, list(things))

    @property
    def is_blocked(self) -> bool:
        """Whether the broker says that it takes no messages for now."""
        return False

    @property
    def behind(self) -> int:
        """How many messages wait."""
        return len(self._queue)

    def flush(self, timeout: float | None) -> bool:
        """Wait until nothing is queued, being published, not yet confirmed, or left to be done."""
        with self._lock:
            self._flushing += 1
            try:
                if self._thread is not None:
                    self._wake()
                    self._settled.wait_for(lambda: self._idle or self._closed.is_set(), timeout)
            finally:
                self._flushing -= 1
            return self._idle

    def start(self) -> None:
        """Begin to publish; idempotent."""
        if self._thread is None:
            thread = threading.Thread(
                target=self._reconnects.run,
                args=(self._use,),
                name=f"wbengine-sender-{self._name}",
                daemon=True,
            )
            thread.start()
            self._thread = thread

    def close(self) -> None:
        """Publish nothing more."""
        self._closed.set()
        with self._lock:
            self._wake()
            self._settled.notify_all()

    def stop(self) -> None:
        """Close, wait for the thread, and make the calls that are left."""
        self.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._lock:
            self._over = True
        self._make_calls()

    # When there is something to do; under the lock.

    @property
    def _idle(self) -> bool:
        waiting = self._queue or self._first or self._calls
        return not (waiting or self._sending or self._calling)

    @property
    def _room(self) -> int:
        """How many messages may be written now."""
        return 0 if self._writer is None else BATCH

    @property
    def _is_free(self) -> bool:
        """Whether any thread may publish, if no other does."""
        return self._writer is not None and self._lost is None and not self._closed.is_set()

    def _messages_at(self) -> float:
        """When messages are to be published; infinity: not as things are."""
        if self._sending or self._room <= 0 or not (self._first or self._queue):
            return math.inf
        hurries = self._flushing or len(self._queue) >= BATCH
        return max(self._paused, -math.inf if hurries else self._due)

    def _calls_at(self) -> float:
        if not self._calls:
            return math.inf
        return -math.inf if self._flushing or self._call_count >= BATCH else self._calls_due

    def _next(self) -> float:
        """When the sender's thread has something to do."""
        if self._closed.is_set() or self._lost is not None:
            return -math.inf
        return min(self._messages_at(), self._calls_at())

    def _rouse(self) -> None:
        """Wake the sender's thread, if it would look too late."""
        if self._next() < self._looks_at:
            self._wake()

    def _wake(self) -> None:
        self._woken.notify_all()

    def _sleep_for(self, at: float, now: float) -> float | None:
        """It has nothing to do until then: the seconds that it may wait (None: for ever)."""
        if self._flushing:
            self._settled.notify_all()
        if self._deferred:  # others will come, and need not wake it
            at = min(at, now + DEFERRED)
        self._deferred = False
        self._looks_at = at
        return None if at == math.inf else at - now

    # The sender's thread.

    def _use(self, connection: Any) -> None:
        """Publish on a connection, until it is lost or all is over; what was written without an
        error is published."""
        kind = BrokerWriter if self._target.ours else KombuWriter
        writer = kind(connection, self._layout)
        with self._lock:
            self._writer, self._lost = writer, None
        try:
            while not self._closed.is_set():
                self._turn()
        finally:
            with self._lock:
                self._writer = None

    def _turn(self) -> None:
        with self._lock:
            now = time.monotonic()
            while now < (at := self._next()):
                self._woken.wait(self._sleep_for(at, now))
                self._looks_at = -math.inf
                now = time.monotonic()
        self._act(now)

    def _act(self, now: float) -> None:
        """Publish what is due, and make the calls that are.

        :raises Exception: the connection is lost.
        """
        with self._lock:
            if self._lost is not None:
                raise self._lost
            mine = now >= self._messages_at() and not self._closed.is_set()
            if mine:
                self._sending = True
        if mine:
            try:
                self._publish_some(1)
            finally:
                self._sending = False
                self._release()
        with self._lock:
            self._calling = now >= self._calls_at() and not self._closed.is_set()
        if self._calling:
            self._make_calls()
            with self._lock:
                self._calling = False

    def _make_calls(self) -> None:
        with self._lock:
            calls, self._calls, self._call_count = self._calls, {}, 0
        for function, things in calls.items():
            call(function, things)

    # The thread that publishes.

    def _release(self) -> None:
        """Others may publish."""
        with self._lock:
            self._settled.notify_all()
            late = self._calls and self._calls_due < self._looks_at
            if late or self._due < math.inf or self._lost is not None:
                self._rouse()

    def _publish_some(self, rounds: int) -> None:
        for _ in range(rounds):
            with self._lock:
                writer = self._writer
                batch = self._batch(min(BATCH, self._room))
            if not batch:
                self._done(())  # an interruption may have left there what was sent
                return
            try:
                batch = self._prepare(batch)
            except self._reconnects.errors as error:  # the connection is not to blame
                self._paused = time.monotonic() + PAUSE
                self._reconnects.tell(reasons.explain(error))
                return
            if writer is None or writer is not self._writer:
                return  # it was closed meanwhile: they stay, prepared, for another
            try:
                self._publish(batch, writer)
            except self._reconnects.errors as error:
                with self._lock:
                    if self._writer is writer:  # else there is another connection by now
                        self._lost = error
                return
            if self._due == math.inf:
                return

    def _batch(self, most: int) -> list[OutgoingMessage]:
        """What goes out together."""
        found: list[OutgoingMessage] = []
        size = 0
        for message in itertools.islice(self._first or self._queue, most):
            if not message.sent:
                size += message.size
                if found and size > _BATCH_BYTES:
                    break
                found.append(message)
        return found

    def _done(self, messages: Iterable[OutgoingMessage]) -> None:
        """They have left the sender."""
        for message in messages:
            message.sent = True
        with self._lock:
            for queue in (self._first, self._queue):
                while queue and queue[0].sent:
                    queue.popleft()
            if not (self._first or self._queue):
                self._due = math.inf

    def _prepare(self, messages: list[OutgoingMessage]) -> list[OutgoingMessage]:
        """Those that are to be published now; the others have left the sender."""
        groups = list(by_hooks(m for m in messages if not m.withdrawn).values())
        while groups:
            group = [message for message in groups.pop(0) if not message.withdrawn]
            try:
                if group:
                    group[0].hooks.prepare(group)
            except self._reconnects.errors:
                raise
            except Exception as error:
                if len(group) == 1:
                    self._fail(group[0], error)
                else:  # one of them is to blame
                    groups[:0] = [[message] for message in group]
        wanted = [message for message in messages if not (message.withdrawn or message.sent)]
        if len(wanted) < len(messages):
            self._done(message for message in messages if message.withdrawn)
        return wanted

    def _fail(self, message: OutgoingMessage, error: Exception) -> None:
        LOG.error("a message cannot be published: %s", error)
        self._done((message,))
        call(message.hooks.failed, message, error)

    def _publish(self, messages: list[OutgoingMessage], writer: Any) -> None:
        """Publish what is prepared.

        :raises Exception: the connection is lost.
        """
        written: list[tuple[OutgoingMessage, Any]] = []
        for message in messages:
            try:
                written.append((message, writer.prepare(message.envelope)))
            except Exception as error:
                self._fail(message, error)
        if not written:
            return
        # What is told of a task comes before its end.
        written.sort(key=_writes)
        crashpoint("sender.before-publish")
        sent: list[OutgoingMessage] = []
        count = 0
        try:
            for count, routed in enumerate(_write(writer, written), 1):
                message = written[count - 1][0]
                if routed or not message.hooks.mandatory:
                    sent.append(message)
                else:
                    self._done((message,))
                    self.astray()
                    call(message.hooks.unrouted, message)
            self._reconnects.told = ""
        except self._reconnects.errors as error:
            if not isinstance(error, _AILMENTS):
                under_way = written[count:] if writer.together else written[count : count + 1]
                self._doubt(message for message, _ in under_way)
            raise  # the others stay where they are, and go out on the next connection
        except Exception as error:
            self._fail(written[count][0], error)
        finally:
            crashpoint("sender.after-publish")
            self._done(sent)
            for hooks, group in by_hooks(sent).items():
                call(hooks.sent, group)

    def _doubt(self, messages: Iterable[OutgoingMessage]) -> None:
        """It is not known what became of them: some want to be told."""
        for message in messages:
            if not message.hooks.repeats:
                self._done((message,))
                call(message.hooks.uncertain, message)


class BrokerWriter:
    """To a broker of ours, several at once."""

    together = True

    def __init__(self, broker: Broker, layout: topology.Topology) -> None:
        self.broker = broker
        self._exchange = layout.declare_on(broker)

    def prepare(self, envelope: env.Envelope) -> LaidOut:
        return self.broker.lay_out(envelope, self._exchange)

    def write(self, messages: Sequence[LaidOut]) -> Iterator[bool]:
        return self.broker.publish_many(messages)


class KombuWriter:
    """To kombu's transports, through its producer, one after the other."""

    together = False

    def __init__(self, connection: kombu.Connection, layout: topology.Topology) -> None:
        self._channel = connection.channel()
        self._layout = layout
        exchange = layout.declare_exchange(self._channel)
        self._producer = kombu.Producer(self._channel, exchange=exchange, auto_declare=False)
        self._peers = topology.PeerQueues(layout, amqp=False)

    def prepare(self, envelope: env.Envelope) -> env.Envelope:
        """The message of an envelope."""
        return envelope

    def write(self, messages: Iterable[env.Envelope]) -> Iterator[bool]:
        """Publish, in order; whether there was a queue, as soon as one is published."""
        for envelope in messages:
            self._publish(envelope)
            yield True  # as far as the broker tells

    def _publish(self, envelope: env.Envelope) -> None:
        keys: Iterable[str] = (envelope.routing_key,)
        if self._layout.direct:
            now = time.monotonic()
            keys = self._layout.queues_of(self._channel, envelope.routing_key, now)
        self._peers.declare(self._channel, envelope)
        headers = envelope.signed_headers
        for key in keys:
            self._producer.publish(
                envelope.encoded,
                routing_key=key,
                content_type="application/json",
                content_encoding="utf-8",
                type=envelope.type,
                correlation_id=envelope.correlation_id,
                reply_to=envelope.reply_to,
                headers=headers,
                priority=envelope.priority,
            )


def _nothing() -> None:
    return None


def _writes(pair: tuple[OutgoingMessage, Any]) -> bool:
    return pair[0].hooks.writes


def _write(writer: Any, written: list[tuple[OutgoingMessage, Any]]) -> Iterator[bool]:
    """Publish, in order: the writer does, and after it the hooks that do so themselves."""
    for own, group in itertools.groupby(written, key=_writes):
        pairs = list(group)
        if not own:
            yield from writer.write([prepared for _, prepared in pairs])
            continue
        for hooks, messages in by_hooks(message for message, _ in pairs).items():
            prepared = [prepared for message, prepared in pairs if message.hooks is hooks]
            yield from hooks.write(writer.broker, messages, prepared)


def call(function: Callable[..., object], *args: Any) -> None:
    """Call what follows the publishing of a message; what it raises is logged."""
    try:
        function(*args)
    except Exception:
        LOG.exception("what follows the publishing of a message failed")
