"""The receiving connection of a proxy, with reconnects."""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from wbengine import exceptions as exc
from wbengine import transports
from wbengine._concurrency import conditions
from wbengine._concurrency.crash_points import crashpoint
from wbengine.engines.worker_based._connections import connecting, topology
from wbengine.engines.worker_based._connections.receiver import Prefetcher, Receiver
from wbengine.engines.worker_based._connections.sender import (
    DEFERRED_SECONDS,
    DeliveryHooks,
    OutgoingMessage,
    Sender,
)
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.transports import _reasons
from wbengine.transports._broker import Order
from wbengine.transports._publishing import MAX_BATCH_MESSAGES
from wbengine.transports._receiving import MessageConsumer

LOG = logging.getLogger(__name__)

#: Number of waiting replies for each slot above which slots are not released early.
_MAX_QUEUED_REPLIES_PER_SLOT: Final = 8

CONNECT_TIMEOUT_SECONDS: Final = 10.0

#: Maximum seconds of one wait for messages, for transports with and without a wake-up.
DRAIN_SECONDS: Final = 1.0
SHORT_DRAIN_SECONDS: Final = 0.05

#: Maximum delay of `ack_later` in the consumer's thread.
ACK_DELAY_SECONDS: Final = 0.05

#: Pause before reconnecting to a broker that is reachable but does not work.
RECONNECT_PAUSE_SECONDS: Final = 0.5

#: After a refused operation, seconds in which replies use another channel.
REFUSED_PAUSE_SECONDS: Final = 60.0


class ConsumerLoop:
    """Connects, passes on messages and reconnects, in the thread that calls `start`.

    `handle(message)` receives each message, in the same thread. Any thread may acknowledge it. The
    sender publishes on another connection.
    """

    def __init__(
        self,
        target: transports.Target,
        layout: topology.Topology,
        refused: Counter[str],
        sender: Sender,
        on_wait: Callable[[], float | None] | None,
        handle: Callable[[Any], None],
    ) -> None:
        self._target = target
        self._handle = handle
        #: The requests of shared queues. `consume_shared` sets the queues.
        self.work = Prefetcher((), 0)
        self._topology = layout
        self._refused = refused
        self._sender = sender
        sender.report_missing_queue = self._declare_soon
        self._on_wait = on_wait
        self._running = conditions.Event()
        self._stopping = conditions.Event()
        self._ended = conditions.Event()
        self._error: BaseException | None = None
        #: Whether `stop` must leave the private queue for another process.
        self.keeps_queue = False
        # Reason of the last reconnect, and time since which messages are received.
        self._last_reason = ""
        self._receiving_since = math.inf
        self._pending_calls: deque[Callable[[], None]] = deque()
        # Time after which replies are published on the channels of their requests.
        self._replies_from = 0.0
        # Whether slots are free before acknowledgements; see `release_many`.
        self._releases_slots = target.is_native
        # Messages to acknowledge later, and when.
        self._receipts: deque[Any] = deque()
        self._receipts_due = math.inf
        self._consumer = 0
        # Time of the next wake-up of the consumer's thread.
        self._sleeps_until = math.inf
        self.channel: Any = None
        self._receiver: Receiver | None = None
        #: Called in each iteration with the time of the broker's last message.
        self.on_iteration: Callable[[float], object] | None = None
        self._copying = _Copying(self)

    @property
    def is_running(self) -> bool:
        return self._running.is_set() and not self._ended.is_set()

    @property
    def last_message_at(self) -> float:
        """Time of the broker's last message (monotonic clock); -infinity if not connected."""
        receiver = self._receiver
        return -math.inf if receiver is None else receiver.last_message_at

    @property
    def is_blocked(self) -> bool:
        """Whether the broker currently reads nothing from the connection."""
        receiver = self._receiver
        return receiver is not None and receiver.link.is_blocked

    @property
    def has_ended(self) -> bool:
        """Whether `start` has returned. A proxy cannot be started again."""
        return self._ended.is_set()

    def start(self) -> None:
        """Connect and dispatch messages until `stop`. Blocks.

        :raises TransportFailure: if the broker cannot be reached within 10 seconds.
        """
        try:
            self._run()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._sender.stop()
            self._ended.set()
            self._running.set()

    def fail(self, error: BaseException) -> None:
        """Make `wait` raise an error of the owner."""
        self._error = self._error or error
        self._running.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the proxy is connected and consuming; return False on timeout.

        :raises TransportFailure: if connecting failed. Errors passed to `fail` are raised too.
        """
        ready = self._running.wait(timeout)
        if self._error is not None:
            raise self._error
        return ready

    def stop(self, timeout: float = 5.0) -> None:
        """Publish queued messages, delete the private queue unless it is kept, and disconnect."""
        self._sender.flush(timeout)
        self._stopping.set()
        self._sender.close()
        self._wake_consumer()

    def join(self, timeout: float) -> bool:
        return self._ended.wait(timeout)

    def _wake_consumer(self) -> None:
        receiver = self._receiver  # Read once: the consumer's thread may reset it at any time.
        if receiver is not None:
            receiver.link.wake()

    def _declare_soon(self) -> None:
        """Declare queues again because they may be missing. Thread-safe."""
        receiver = self._receiver
        if receiver is not None:
            receiver.declare_soon()
            self._wake_consumer()

    def _run(self) -> None:
        self._consumer = threading.get_ident()
        until = time.monotonic() + CONNECT_TIMEOUT_SECONDS
        while not self._stopping.is_set():
            is_first = not self._running.is_set()
            try:
                connection = connecting.reach(
                    self._target,
                    self._stopping,
                    within=max(1.0, until - time.monotonic()) if is_first else None,
                    on_failure=connecting.log_reasons("cannot reach the broker (%s), retrying"),
                )
            except exc.TransportFailure:
                if is_first and not self._stopping.is_set():
                    raise
                continue
            try:
                self._consume(connection)
            except Exception as error:
                self._handle_error(error, connection, time.monotonic() < until)
            finally:
                connecting.release(connection)

    def _handle_error(
        self, error: Exception, connection: connecting.Connection, early: bool
    ) -> None:
        """Raise or log an error. `early`: the first start may be tried again."""
        why = _reasons.explain(error)
        lost = isinstance(error, tuple(connection.recoverable_connection_errors))
        refused = isinstance(error, tuple(connection.channel_errors))
        # A stopping process may remove a queue that this one has just declared.
        passing = lost or getattr(error, "code", None) == 404 or _reasons.may_pass(error)
        if not (self._running.is_set() or (early and passing)):
            # These transports raise errors of any type.
            foreign = not (self._target.is_native or self._target.amqp)
            if lost or refused or foreign or isinstance(error, (OSError, exc.TransportFailure)):
                raise exc.TransportFailure(f"{self._target.shown} cannot be used: {why}") from error
            raise error
        if self._stopping.is_set():
            return
        if time.monotonic() - self._receiving_since > DRAIN_SECONDS:
            self._last_reason = ""
        self._receiving_since = math.inf
        if why == self._last_reason:
            LOG.debug("still receiving no messages (%s)", why)
        elif lost:
            LOG.warning("lost the connection to the broker (%s), reconnecting", why)
        # For example, the disk is full.
        elif refused or isinstance(error, (OSError, exc.TransportFailure)):
            LOG.warning("cannot receive messages (%s), reconnecting", why)
        else:
            LOG.error("cannot receive messages, reconnecting", exc_info=error)
        self._last_reason = why
        cut = lost and isinstance(error, OSError)
        self._stopping.wait(SHORT_DRAIN_SECONDS if cut else RECONNECT_PAUSE_SECONDS)

    def _consume(self, connection: connecting.Connection) -> None:
        link = self._target.kind.link(connection, self._topology, self._replies_from)
        link.on_discard = self._count_discarded
        receiver = Receiver(link, self._target, self._topology, self.work, self._sender)
        try:
            if not self._running.is_set():
                self._sender.start()  # The sender connects in parallel.
            receiver.begin(self._handle, self._on_work)
            self._receiver, self.channel = receiver, receiver.channel
            self._receiving_since = time.monotonic()
            self._running.set()
            self._drain(receiver)
            receiver.end(remove=not self.keeps_queue)
        except BaseException as error:
            link.drop()
            if link.refuses(error):
                self._pause_replies(error)
            raise
        finally:
            self.channel = self._receiver = None
            receiver.close()

    def _count_discarded(self) -> None:
        self._refused["unreadable"] += 1

    def _pause_replies(self, error: BaseException) -> None:
        # The sender can identify the reply that is the cause.
        self._replies_from = time.monotonic() + REFUSED_PAUSE_SECONDS
        LOG.warning(
            "the broker refused an operation on the receiving channel (%s): for"
            " %.0f s replies use another channel",
            _reasons.explain(error),
            REFUSED_PAUSE_SECONDS,
        )

    def _drain(self, receiver: Receiver) -> None:
        link = receiver.link
        max_timeout = DRAIN_SECONDS if link.can_wake else SHORT_DRAIN_SECONDS
        while not self._stopping.is_set():
            if self._pending_calls:
                with link.together():
                    while self._pending_calls:
                        self._pending_calls.popleft()()
            # Set this before the checks: events after that wake this thread.
            self._sleeps_until = math.inf
            now = time.monotonic()
            echo_due = receiver.run_due(now)
            waits_until = None if self._on_wait is None else self._on_wait()
            if self.on_iteration is not None:
                self.on_iteration(receiver.last_message_at)
            due = min(echo_due, self._acknowledge_later(now))
            if waits_until is not None:
                due = min(due, waits_until)
            timeout = min(max_timeout, max(0.001, due - time.monotonic()))
            self._sleeps_until = now + timeout
            try:
                link.drain(timeout)
            except TimeoutError:
                pass
        # Its last calls acknowledge messages of this connection.
        self._sender.stop()
        while self._pending_calls:
            self._pending_calls.popleft()()
        self._acknowledge_later(math.inf)

    def _acknowledge_later(self, now: float) -> float:
        """Acknowledge messages of `ack_later` that are due; return the time of the next call."""
        if self._receipts:
            self._receipts_due = min(self._receipts_due, now + ACK_DELAY_SECONDS)
            if now >= self._receipts_due or len(self._receipts) >= MAX_BATCH_MESSAGES:
                self._receipts_due = math.inf
                self.ack_many([self._receipts.popleft() for _ in range(len(self._receipts))])
        return self._receipts_due

    def delete_private_queue(self, name: str) -> None:
        """Remove the private queue of a stopped process, unless it is used. Thread-safe."""

        def remove() -> None:
            if self._receiver is not None:
                self._receiver.link.delete_private_queue(name)

        self.call_soon(remove)

    # Requests.

    def consume_shared(self, queues: Sequence[str], slots: int) -> None:
        """Also consume requests from shared queues, at most `slots` at a time.

        A queue is polled only if the preceding `queues` are empty. Each request must end with one
        call of `ack` or `return_unstarted`, which frees its slot. This takes effect at the next
        connection.
        """
        self.work = Prefetcher(queues, slots)
        self._topology.is_brief = True

    def pause_requests(self) -> None:
        """Consume no more requests; received requests can still be acknowledged.

        Delivered requests that were not passed on are requeued. Thread-safe and idempotent.
        """
        self.call_soon(self.work.pause)

    def resume_requests(self) -> None:
        """Consume requests again after `pause_requests`. Thread-safe and idempotent."""
        self.call_soon(self.work.resume)

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call `function` in the consumer's thread."""
        self._pending_calls.append(function)
        self._wake_consumer()

    def ack(self, message: Any) -> None:
        """Acknowledge a message and free its slot. Thread-safe; never raises.

        A message of a lost connection is delivered again.
        """
        self.ack_many((message,))

    def ack_many(self, messages: Sequence[Any]) -> None:
        for consumer, group in grouped(messages).items():
            crashpoint("proxy.before-ack")
            try:
                consumer.ack_many(group)
                crashpoint("proxy.after-ack")
            except Exception as error:  # The broker delivers the messages again.
                level = _level_of(error)
                LOG.log(level, "%d messages cannot be acknowledged (%s)", len(group), error)
        self._free_many(messages)

    def ack_later(self, *messages: Any) -> None:
        """`ack` messages of the private queue together with others."""
        if self._releases_slots:
            self._sender.call_later(self.ack_many, *messages)
        else:  # This does not wake the consumer's thread, and needs no connection of the sender.
            self._receipts.extend(messages)

    def ack_answered(self, acknowledge: Callable[[list[Any]], object], jobs: Sequence[Any]) -> None:
        """Call `acknowledge(jobs)`, which calls `ack_many`, after their replies are published."""
        if self._releases_slots:
            self._sender.call_later(acknowledge, *jobs)  # Later: `release_many` freed the slots.
        else:
            acknowledge(list(jobs))

    def forget_many(self, messages: Sequence[Any]) -> None:
        """Free the slots of messages that were acknowledged with their replies."""
        for consumer, group in grouped(messages).items():
            consumer.forget_many(group)
        self._free_many(messages)

    def _free_many(self, messages: Sequence[Any]) -> None:
        work = self.work
        for message in messages:
            was_held = work.held.pop(message, self) is None
            if was_held and message.channel is not work.channel:
                self.call_soon(work.adjust)

    def _free(self, message: Any) -> None:
        self._free_many((message,))

    def release_many(self, messages: Sequence[Any]) -> None:
        """Release the slots of requests that are about to be answered, if the sender keeps up.

        Thread-safe; only for brokers of wbengine.
        """
        if self._sender.queue_length < _MAX_QUEUED_REPLIES_PER_SLOT * self.work.slots:
            for consumer, group in grouped(messages).items():
                consumer.release_many(group)

    def order(self, done: Sequence[Any]) -> Order | None:
        """Call `release_many` and return the order for `Broker.finish`, or None."""
        order = None
        for consumer, group in grouped(done).items():
            if consumer is self.work.channel:
                order = consumer.order(group)
            else:
                consumer.release_many(group)
        return order

    def requeue(self, message: Any, done: Callable[[], None] = lambda: None) -> None:
        """Requeue a request and free its slot; then call `done()` in the consumer's thread.

        Thread-safe; never raises. The request is delivered again, marked as redelivered. For an
        unstarted request without a ledger, use `return_unstarted`.
        """

        def settle() -> None:
            try:
                _requeue(message)
                self._free(message)
            finally:
                done()

        self.call_soon(settle)

    def return_unstarted(self, message: Any, done: Callable[[], None] = lambda: None) -> None:
        """Return an unstarted request to its queue, then call `done()`. Thread-safe.

        Without a ledger, workers do not run redelivered requests, so a copy replaces the request.
        """
        if env.has_row(message):
            self.requeue(message, done)
            return
        copy = OutgoingMessage(env.copy_of(message), self._copying, (message, done))
        # The copy must be published after consuming has ended, like requeued requests.
        self.call_soon(functools.partial(self._sender.send, copy, defer=True))

    def wake_by(self, due: float) -> None:
        if due < self._sleeps_until and threading.get_ident() != self._consumer:
            self._wake_consumer()

    def answer(self, message: OutgoingMessage, request: Any, soon: bool) -> bool:
        """Publish a terminal reply and acknowledge its request. Thread-safe; only with RabbitMQ.

        `message.hooks` are called after the broker's confirm.

        :param soon: whether the calling thread publishes another reply within milliseconds. Then
            both are sent together.
        :returns: False if the reply must be sent with the sender.
        """
        if not request.channel.answer(message, request, self._free, soon):
            return False
        if soon:
            self.wake_by(time.monotonic() + DEFERRED_SECONDS)
        return True

    def _on_work(self, message: Any) -> None:
        work = self.work
        if not message.channel.admits(message):
            self.return_unstarted(message)
            return
        work.held[message] = None
        if message.channel is not work.channel:  # Its connection is being replaced.
            self.call_soon(work.adjust)
        self._handle(message)
        if message.acknowledged and message in work.held:  # Another thread may be faster.
            self._free(message)


class _Copying(DeliveryHooks):
    """Replaces a delivered message by a copy. The correlation is the message and a callback."""

    mandatory = True

    def __init__(self, owner: ConsumerLoop) -> None:
        self._owner = owner

    def sent(self, messages: Sequence[OutgoingMessage]) -> None:
        self._owner.ack_many([message.correlation[0] for message in messages])
        for message in messages:
            message.correlation[1]()

    def unrouted(self, message: OutgoingMessage) -> None:
        self._owner.requeue(*message.correlation)

    def failed(self, message: OutgoingMessage, error: BaseException) -> None:
        self._owner.requeue(*message.correlation)


def grouped(messages: Iterable[Any]) -> dict[MessageConsumer, list[Any]]:
    """Group messages by their consumers."""
    groups: dict[MessageConsumer, list[Any]] = {}
    for message in messages:
        groups.setdefault(message.channel, []).append(message)
    return groups


def _requeue(message: Any) -> None:
    try:
        message.requeue()
    except Exception as error:
        tag = message.delivery_tag
        LOG.log(_level_of(error), "message %s cannot be requeued (%s)", tag, error)


def _level_of(error: Exception) -> int:
    """Return the level to log an error of settling. An `OSError` ends the connection anyway."""
    return logging.DEBUG if isinstance(error, OSError) else logging.WARNING
