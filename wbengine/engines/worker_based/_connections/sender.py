"""Outgoing messages of a process: their queue, hooks, and the connection that publishes them."""

from __future__ import annotations

import itertools
import logging
import math
import operator
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final

from wbengine import exceptions as exc
from wbengine import transports
from wbengine._concurrency import conditions, threads
from wbengine._concurrency.crash_points import crashpoint
from wbengine.engines.worker_based._connections import connecting, topology
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.transports import _encoding, _reasons
from wbengine.transports._broker import Broker, Frame
from wbengine.transports._publishing import MAX_BATCH_MESSAGES, Writer

LOG = logging.getLogger(__name__)

Call = Callable[[list[Any]], object]

#: Approximate maximum number of bytes of a batch.
_MAX_BATCH_BYTES: Final = 1024 * 1024

_MAX_BATCHES_PER_SEND: Final = 2

#: Maximum delay of deferred messages, and of deferred calls.
DEFERRED_SECONDS: Final = 0.005
_CALLS_DEFERRED_SECONDS: Final = 0.02

#: Seconds between two attempts to publish: a broker may accept connections, but no messages.
RETRY_PAUSE_SECONDS: Final = 0.25

_writes: Final = operator.attrgetter("hooks.writes")

#: Errors of the broker or the ledger, not of the message.
_SERVICE_ERRORS: Final = (exc.TransportFailure, exc.LedgerFailure)


class DeliveryHooks:
    """Actions before and after publishing messages of one kind.

    The publishing thread calls the methods with all messages of a batch.
    """

    #: Whether the broker must report messages without a queue (`unrouted`).
    mandatory: ClassVar[bool] = False

    #: Whether the hooks publish the messages with `write`; only with brokers of wbengine.
    writes: ClassVar[bool] = False

    def write(self, broker: Broker, messages: Sequence[OutgoingMessage]) -> Iterable[bool]:
        """Publish encoded messages; return for each, in order, whether it had a queue."""
        raise NotImplementedError

    @property
    def repeats(self) -> bool:
        """Whether messages that may have been lost with a connection are published again.

        If not, `uncertain` is called.
        """
        return True

    def prepare(self, messages: Sequence[OutgoingMessage]) -> None:
        """Prepare messages for publishing; set `withdrawn` of messages not to publish.

        After an error of the connection or the ledger, this is called again. Any other error fails
        all of the messages.
        """

    def sent(self, messages: Sequence[OutgoingMessage]) -> None:
        """Handle messages that are published, and confirmed if the broker confirms."""

    def failed(self, message: OutgoingMessage, error: BaseException) -> None:
        """Handle a message that can never be published."""

    def unrouted(self, message: OutgoingMessage) -> None:
        """Handle a message without a queue, if `mandatory`."""
        self.sent((message,))

    def uncertain(self, message: OutgoingMessage) -> None:
        """Handle a message whose connection was lost before the broker confirmed it."""


class _Echo(DeliveryHooks):
    mandatory = True  # Without a queue, only `Sender.report_missing_queue` is called.


#: Hooks without actions, and hooks of messages that a process sends to itself.
NO_HOOKS, ECHO = DeliveryHooks(), _Echo()


class OutgoingMessage(Frame):
    """A message in the queue of a sender.

    `correlation` identifies it for its hooks. A `withdrawn` message is skipped, unless it is too
    late. `sent` is True after the message has left the sender.
    """

    __slots__ = ("correlation", "envelope", "hooks", "sent", "withdrawn")

    def __init__(
        self, envelope: env.Envelope, hooks: DeliveryHooks = NO_HOOKS, correlation: Any = None
    ) -> None:
        self.envelope = envelope
        self.hooks = hooks
        self.correlation = correlation
        self.sent = self.withdrawn = False

    def encode(self, exchange: str, labels: bool) -> None:
        """Encode the message for a broker of wbengine. `labels`: see `Broker.labels`.

        :raises TooLarge: if it exceeds 64 MiB.
        :raises ValueError, TypeError: if a header cannot be encoded as JSON.
        """
        envelope = self.envelope
        self.exchange, self.routing_key = exchange, envelope.routing_key
        self.priority = envelope.priority
        self.head, self.body = _encoding.head_of(envelope, exchange), envelope.encoded
        if labels:
            self.head = _encoding.label(self.head, envelope.headers, envelope.correlation_id)

    @property
    def body_size(self) -> int:
        """Bytes of the body; 0 if it cannot be encoded: publishing then fails."""
        try:
            return len(self.envelope.encoded)
        except Exception:
            return 0


class Sender:
    """Publishes messages in order on a separate connection, with retries.

    If the connection is idle, the thread that sends a message publishes it together with all
    waiting messages. Otherwise the thread that uses the connection publishes it. The sender's own
    thread connects, and publishes deferred and remaining messages.

    The messages of a batch share the calls of `DeliveryHooks`. A message that a lost connection or
    a full disk interrupted is published again, in order, unless its hooks do not permit that.
    """

    def __init__(self, target: transports.Target, layout: topology.Topology, name: str) -> None:
        self._target = target
        self._layout = layout
        self._name = name
        self._closed = conditions.Event()
        # Errors after which the sender reconnects.
        self._errors: tuple[type[Exception], ...] = ()
        # The last logged failure, or "" after a successful publish.
        self._last_logged = ""
        # All times are on the monotonic clock.
        self._queue: deque[OutgoingMessage] = deque()
        self._urgent_queue: deque[OutgoingMessage] = deque()
        self._due = math.inf
        self._paused_until = -math.inf
        self._calls: dict[Call, list[Any]] = {}
        self._call_count = 0
        self._calls_due = math.inf
        self._lock = threading.RLock()
        self._woken = conditions.Condition(self._lock)
        self._settled = conditions.Condition(self._lock)
        #: Called in the publishing thread if an exchange or a queue is missing.
        self.report_missing_queue: Callable[[], None] = lambda: None
        self._writer: Writer | None = None
        self._is_careful = False  # See `Writer`.
        # Whether a thread publishes, and whether the sender's thread runs deferred calls.
        self._is_sending = False
        self._is_calling = False
        self._flushing: set[object] = set()
        self._is_stopped = False
        # Error of the connection that another thread detected.
        self._connection_error: BaseException | None = None
        # Time of the next wake-up of the sender's thread; -infinity while it runs.
        self._wakes_at = -math.inf
        self._has_deferred = False
        self._thread: threading.Thread | None = None

    # In any thread.

    def send(self, message: OutgoingMessage, *, first: bool = False, defer: bool = False) -> None:
        """Publish a message with all waiting messages, here or in the thread that is publishing.

        Messages are published in order, except that `first` ones (heartbeats) overtake others.
        With `defer`, another thread publishes the message within milliseconds; the calling thread
        may then hold locks. An unavailable broker delays the message without an error.
        """
        is_sending = False
        try:
            with self._lock:
                (self._urgent_queue if first else self._queue).append(message)
                if defer:
                    self._has_deferred = True
                    self._due = min(self._due, time.monotonic() + DEFERRED_SECONDS)
                    self._wake_if_due()
                    return
                self._due = -math.inf
                if self._is_sending:
                    return
                if not self._can_send or self._paused_until > time.monotonic():
                    self._wake_if_due()
                    return
                # This order is safe if an interrupt (Ctrl-C) occurs in between.
                is_sending = self._is_sending = True
            self._publish_some(_MAX_BATCHES_PER_SEND)
        except BaseException:  # The sender's own thread publishes the rest.
            with self._lock:
                self._due = -math.inf
                self._wake_if_due()
            raise
        finally:
            if is_sending:
                # Inline: an interrupt could prevent a call.
                self._is_sending = False
                self._release()

    def report_sent(
        self, messages: Iterable[OutgoingMessage], unrouted: Iterable[OutgoingMessage] = ()
    ) -> None:
        """Call the hooks of messages that are published and confirmed."""
        self._last_logged = ""
        for message in unrouted:
            self.report_missing_queue()
            call(message.hooks.unrouted, message)
        _call_sent(messages)

    def report_replies(self, messages: Iterable[OutgoingMessage]) -> None:
        """Call the hooks of messages that are confirmed on a receiving connection.

        The sender's own connection may still fail, for the reason that was logged.
        """
        _call_sent(messages)

    def call_later(self, function: Call, *things: Any) -> None:
        """Call `function([thing, ...])` once within milliseconds, with the things of all calls.

        The sender's idle thread calls it, or this thread after the sender's end. Errors are logged.
        """
        with self._lock:
            if not self._is_stopped:
                if not self._call_count:
                    self._calls_due = time.monotonic() + _CALLS_DEFERRED_SECONDS
                self._call_count += len(things)
                self._calls.setdefault(function, []).extend(things)
                if self._calls_due < self._wakes_at or self._call_count >= MAX_BATCH_MESSAGES:
                    self._wake_if_due()
                return
        call(function, list(things))

    @property
    def is_blocked(self) -> bool:
        """Whether the broker reports that it accepts no messages."""
        writer = self._writer
        return writer is not None and writer.is_blocked

    @property
    def queue_length(self) -> int:
        return len(self._queue)

    def flush(self, timeout: float | None) -> bool:
        """Wait until no message is queued or unconfirmed, and no call is deferred."""
        me = object()
        try:
            with self._lock:
                self._flushing.add(me)
                self._wake()
            if self._thread is not None:
                self._settled.wait_for(lambda: self._is_idle or self._closed.is_set(), timeout)
        finally:
            self._flushing.discard(me)
        with self._lock:
            return self._is_idle

    def start(self) -> None:
        if self._thread is None:
            thread = threads.Thread(
                target=self._run, name=f"wbengine-sender-{self._name}", daemon=True
            )
            try:
                thread.start()
            finally:  # also after an interrupt
                self._thread = None if thread.ident is None else thread

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            self._wake()
            self._settled.notify_all()

    def stop(self) -> None:
        """Disconnect, and make the deferred calls here. Idempotent."""
        self.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._lock:
            self._is_stopped = True
        self._make_calls()

    # Times. The lock is held.

    @property
    def _is_idle(self) -> bool:
        waiting = self._queue or self._urgent_queue or self._calls
        writer = self._writer
        is_written = writer is None or writer.is_idle
        return is_written and not (waiting or self._is_sending or self._is_calling)

    @property
    def _room(self) -> int:
        return 0 if self._writer is None else self._writer.room

    @property
    def _can_send(self) -> bool:
        return (
            self._writer is not None
            and self._writer.is_shared
            and self._writer.room > 0
            and self._connection_error is None
            and not self._closed.is_set()
        )

    def _messages_at(self) -> float:
        """Return the time of the next publish; infinity if it is not possible now."""
        if self._is_sending or not (self._urgent_queue or self._queue) or self._room <= 0:
            return math.inf
        hurries = self._flushing or len(self._queue) >= MAX_BATCH_MESSAGES
        return max(self._paused_until, -math.inf if hurries else self._due)

    def _calls_at(self) -> float:
        if not self._calls:
            return math.inf
        hurries = self._flushing or self._call_count >= MAX_BATCH_MESSAGES
        return -math.inf if hurries else self._calls_due

    def _next_due(self) -> float:
        if self._closed.is_set() or self._connection_error is not None:
            return -math.inf
        return min(self._messages_at(), self._calls_at())

    def _wake_if_due(self) -> None:
        if self._next_due() < self._wakes_at:
            self._wake()

    def _wake(self) -> None:
        self._woken.notify_all()
        if self._writer is not None:
            self._writer.wake()

    def _sleep_for(self, at: float, now: float) -> float | None:
        if self._flushing:
            self._settled.notify_all()
        # More messages probably follow; they need not wake the thread.
        if self._has_deferred:
            at = min(at, now + DEFERRED_SECONDS)
        self._has_deferred = False
        self._wakes_at = at
        return None if at == math.inf else at - now

    # Methods for the sender's thread.

    def _run(self) -> None:
        """Use one connection after another, until the sender is closed."""
        while not self._closed.is_set():
            try:
                connection = connecting.reach(
                    self._target, self._closed, on_failure=self._log_failure
                )
            except exc.TransportFailure:
                return  # The sender was closed while it tried to connect.
            self._errors = (*connection.recoverable_connection_errors, *_SERVICE_ERRORS)
            try:
                with connection:
                    if not self._closed.is_set():
                        self._use(connection)
            except self._errors as error:
                self._log_failure(_reasons.explain(error))
            except Exception:
                if self._closed.is_set():
                    return
                LOG.exception("failed to publish")
            self._closed.wait(RETRY_PAUSE_SECONDS)

    def _log_failure(self, why: str) -> None:
        """Log a failure unless it equals the last one. Thread-safe."""
        if why != self._last_logged and not self._closed.is_set():
            self._last_logged = why
            LOG.warning("cannot publish (%s), retrying", why)

    def _use(self, connection: Any) -> None:
        """Publish on a connection until it is lost or the sender is closed."""
        writer = self._target.kind.writer(connection, self._layout, self, self._is_careful)
        try:
            writer.open()
            with self._lock:
                self._writer, self._connection_error = writer, None
            while not self._closed.is_set():
                self._wait_and_run(writer)
        except Exception as error:
            failure = writer.fail(error)
            if failure is error:
                raise
            raise failure from error
        finally:
            self._is_careful = writer.is_careful
            self._recall(writer)

    def _recall(self, writer: Writer) -> None:
        """Close a writer, and queue messages again that may be lost with its connection."""
        to_resend = []
        with self._lock:
            unconfirmed = writer.close()
        if unconfirmed:
            self._settled.wait_for(lambda: not self._is_sending)
        for message in unconfirmed:
            if message.hooks.repeats or self._closed.is_set():
                message.sent = False
                to_resend.append(message)
            else:
                call(message.hooks.uncertain, message)
        with self._lock:
            self._queue.extendleft(reversed(to_resend))
            if to_resend:
                self._due = -math.inf
            self._writer = None

    def _wait_and_run(self, writer: Writer) -> None:
        with self._lock:
            now = time.monotonic()
            at = self._next_due()
            wait = self._sleep_for(at, now) if now < at else 0.0
            if now < at and not writer.confirms:
                self._woken.wait(wait)
                self._wakes_at = -math.inf
                return
        if now >= at:
            self._run_due(now)
        if writer.confirms:
            try:
                writer.read(wait, self._wakes_at == math.inf and not self._flushing)
            finally:
                self._wakes_at = -math.inf

    def _run_due(self, now: float) -> None:
        """Publish messages and run calls that are due.

        :raises Exception: if the connection is lost.
        """
        with self._lock:
            if self._connection_error is not None:
                raise self._connection_error
            is_sending = now >= self._messages_at() and not self._closed.is_set()
            if is_sending:
                self._is_sending = True
        if is_sending:
            try:
                self._publish_some(1)
            finally:
                self._is_sending = False
                self._release()
        with self._lock:
            self._is_calling = now >= self._calls_at() and not self._closed.is_set()
        if self._is_calling:
            self._make_calls()
            with self._lock:
                self._is_calling = False

    def _make_calls(self) -> None:
        with self._lock:
            calls, self._calls, self._call_count = self._calls, {}, 0
        for function, things in calls.items():
            call(function, things)

    # Methods for the publishing thread.

    def _release(self) -> None:
        with self._lock:
            self._settled.notify_all()
            late = self._calls and self._calls_due < self._wakes_at
            if late or self._due < math.inf or self._connection_error is not None:
                self._wake_if_due()

    def _publish_some(self, rounds: int) -> None:
        for _ in range(rounds):
            with self._lock:
                writer = self._writer
                batch = self._batch(min(MAX_BATCH_MESSAGES, self._room))
            if not batch:
                self._done(())  # After an interrupt, the queue may contain sent messages.
                return
            try:
                batch = self._prepare(batch)
            except self._errors as error:  # The connection is not the cause.
                self._paused_until = time.monotonic() + RETRY_PAUSE_SECONDS
                self._log_failure(_reasons.explain(error))
                return
            if writer is None or writer is not self._writer:
                # It is closed: the messages remain for the next connection.
                return
            try:
                self._publish(batch, writer)
            except self._errors as error:
                with self._lock:
                    if self._writer is writer:  # Otherwise the sender has reconnected.
                        self._connection_error = error
                return
            if self._due == math.inf:
                return

    def _batch(self, max_messages: int) -> list[OutgoingMessage]:
        batch: list[OutgoingMessage] = []
        size = 0
        for message in itertools.islice(self._urgent_queue or self._queue, max_messages):
            if not message.sent:
                size += message.body_size
                if batch and size > _MAX_BATCH_BYTES:
                    break
                batch.append(message)
        return batch

    def _done(self, messages: Iterable[OutgoingMessage]) -> None:
        for message in messages:
            message.sent = True
        with self._lock:
            for queue in (self._urgent_queue, self._queue):
                while queue and queue[0].sent:
                    queue.popleft()
            if not (self._urgent_queue or self._queue):
                self._due = math.inf

    def _prepare(self, messages: list[OutgoingMessage]) -> list[OutgoingMessage]:
        """Prepare messages; return those to publish. The others have left the sender."""
        groups = list(by_hooks(m for m in messages if not m.withdrawn).values())
        while groups:
            group = [message for message in groups.pop(0) if not message.withdrawn]
            try:
                if group:
                    group[0].hooks.prepare(group)
            except self._errors:
                raise
            except Exception as error:
                if len(group) == 1:
                    self.fail(group[0], error)
                else:  # One of the messages is the cause: publish each separately.
                    groups[:0] = [[message] for message in group]
        remaining = [message for message in messages if not (message.withdrawn or message.sent)]
        if len(remaining) < len(messages):
            self._done(message for message in messages if message.withdrawn)
        return remaining

    def fail(self, message: OutgoingMessage, error: Exception) -> None:
        """Remove a message that can never be published."""
        LOG.error("a message cannot be published: %s", error)
        self._done((message,))
        call(message.hooks.failed, message, error)

    def _publish(self, messages: list[OutgoingMessage], writer: Any) -> None:
        """Publish prepared messages.

        :raises Exception: if the connection is lost.
        """
        encoded: list[OutgoingMessage] = []
        for message in messages:
            try:
                writer.encode(message)
                encoded.append(message)
            except Exception as error:
                self.fail(message, error)
        if not encoded:
            return
        # The events of a task must precede its result.
        encoded.sort(key=_writes)
        crashpoint("sender.before-publish")
        sent: list[OutgoingMessage] = []
        count = 0
        try:
            for count, routed in enumerate(_write(writer, encoded), 1):
                message = encoded[count - 1]
                if routed is None:
                    continue  # The writer reports it.
                if routed or not message.hooks.mandatory:
                    sent.append(message)
                else:
                    self._done((message,))
                    self.report_missing_queue()
                    call(message.hooks.unrouted, message)
            if not writer.confirms:
                self._last_logged = ""
        except self._errors as error:
            if not (writer.confirms or isinstance(error, _SERVICE_ERRORS)):
                end = None if writer.together else count + 1
                self._report_uncertain(encoded[count:end])
            raise  # The others remain for the next connection.
        except Exception as error:
            self.fail(encoded[count], error)
        finally:
            crashpoint("sender.after-publish")
            self._done(sent)
            _call_sent(sent)

    def _report_uncertain(self, messages: Iterable[OutgoingMessage]) -> None:
        for message in messages:
            if not message.hooks.repeats:
                self._done((message,))
                call(message.hooks.uncertain, message)


def _call_sent(messages: Iterable[OutgoingMessage]) -> None:
    for hooks, group in by_hooks(messages).items():
        call(hooks.sent, group)


def by_hooks(messages: Iterable[OutgoingMessage]) -> dict[DeliveryHooks, list[OutgoingMessage]]:
    groups: dict[DeliveryHooks, list[OutgoingMessage]] = {}
    for message in messages:
        if message.hooks is not NO_HOOKS:
            groups.setdefault(message.hooks, []).append(message)
    return groups


def _write(writer: Any, messages: list[OutgoingMessage]) -> Iterator[bool]:
    """Publish in order: first with the writer, then with the hooks that write."""
    for writes, group in itertools.groupby(messages, key=_writes):
        if not writes:
            yield from writer.write(list(group))
            continue
        for hooks, part in by_hooks(group).items():
            yield from hooks.write(writer.broker, part)


def call(function: Callable[..., object], *args: Any) -> None:
    try:
        function(*args)
    except Exception:
        LOG.exception("a callback after publishing a message failed")
