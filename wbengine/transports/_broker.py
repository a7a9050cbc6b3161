"""The interface of wbengine's own brokers: one connection, its consumers, and their common parts.

A `Broker` publishes messages and delivers the messages that its `Consumer`s take.

Order: consumers are served in the order of their creation, and the queues of each in their order.
Within a queue, priority 9 comes first; messages of equal priority are first in, first out for each
publisher.

Threads: one thread drains a connection.
"""

from __future__ import annotations

import abc
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from wbengine import exceptions
from wbengine._logs.repeated_messages import RareWarnings
from wbengine.transports import _encoding
from wbengine.transports._ledger import Opening
from wbengine.transports._publishing import Writer
from wbengine.transports._receiving import MessageConsumer, ReceivingLink

LOG = logging.getLogger(__name__)

#: Maximum size of a batch of messages. A larger message is taken alone.
MAX_BATCH_BYTES: Final = 4 * 1024 * 1024

#: Upper bound that `refresh` returns if messages may be available.
MAX_READY: Final = 1000

#: Maximum time of one `drain` while messages keep arriving.
_MAX_DRAIN_SECONDS: Final = 0.5


@dataclass(slots=True, eq=False)
class Frame:
    """An encoded message to publish. If `exchange` is '', `routing_key` is a queue."""

    exchange: str
    routing_key: str
    priority: int
    head: bytes
    body: bytes = b""

    @property
    def size(self) -> int:
        return len(self.head) + len(self.body)


class Delivery:
    """A message that was taken from its queue, with those attributes of kombu's that are used.

    The consumer parses it before it calls its handler.

    :ivar token: what the broker needs to settle the message; None: it is settled or requeued.
    :ivar data: the encoded message; None if its body was in a row that has been deleted since.
    :ivar body_location: location of the body if it is stored out of line; `Broker.fetch` loads it.
    :ivar claim: the reply of the ledger, if the request was claimed in the same step; else None.
    :ivar taken_at: start of that step on the monotonic clock.
    :ivar label: the known part of the label of the claimed row.
    """

    __slots__ = (
        "acknowledged", "body", "body_location", "channel", "claim", "data", "delivery_info",
        "delivery_tag", "headers", "label", "properties", "queue", "redelivered",
        "taken_at", "token",
    )  # fmt: skip

    headers: dict[str, Any]
    properties: dict[str, Any]
    delivery_info: dict[str, Any]

    def __init__(self, queue: str, token: Any, data: bytes | None, redelivered: bool) -> None:
        self.queue = queue
        self.token = token
        self.data = data
        self.redelivered = redelivered
        self.body = self.label = b""
        self.body_location = ""
        self.claim: Any = None
        self.taken_at: float | None = None
        self.channel: Consumer | None = None
        self.delivery_tag = 0
        self.acknowledged = False

    def parse(self) -> None:
        """Set the properties, the headers and the body.

        :raises InvalidMessageError: if the data is not a valid message, or if the claim that came
            with the message is for another request.
        """
        head, body = _encoding.decode(self.data or b"", self.body)
        self.properties, self.headers = properties, headers = head["properties"], head["headers"]
        if self.claim is not None and not _encoding.has_label(
            headers, properties.get("correlation_id"), self.label
        ):
            raise _encoding.InvalidMessageError("its label names another request than its headers")
        self.delivery_info = {
            "exchange": head["exchange"],
            "routing_key": head["routing_key"],
            "redelivered": self.redelivered,
        }
        self.data, self.body = b"", body

    def ack(self) -> bool:
        """Acknowledge the message. Thread-safe.

        :returns: False if the consumer no longer has the message, for example after a requeue.
        """
        return self.channel is not None and self.channel.ack_many((self,))

    def reject(self, requeue: bool = False) -> None:
        """Requeue the message in its old place, or `refuse` it."""
        self.acknowledged = True
        if self.channel is not None:
            self.channel.reject(self, requeue)

    def requeue(self) -> None:
        self.reject(requeue=True)


class Finish(NamedTuple):
    """A request to finish.

    The `reply` is stored in the row (`id`, `epoch`) and published, and `delivery` is acknowledged.
    """

    id: str
    epoch: int
    delivery: Delivery
    reply: Frame


Handle = Callable[[Delivery], object]


class Broker(ReceivingLink):
    """A connection to one of wbengine's own brokers.

    Only the draining thread may call `refresh`, `take_many`, `watch`, `unwatch`, `wait` and
    `drain`. All other methods are thread-safe. Do not call any after `close`.

    Callers limit the size of a batch. That of the sender has at most 64 messages and 1 MiB, unless
    it is a single message.
    """

    #: Maximum number of messages that one consumer takes at a time.
    batch = 1
    #: Whether the broker reads labels (see `_encoding.label`).
    labels = False
    declare_seconds = 60.0
    # Names of kombu.
    recoverable_connection_errors: tuple[type[BaseException], ...] = (ConnectionError,)
    channel_errors: tuple[type[BaseException], ...] = ()

    def __init__(self) -> None:
        self.consumers: list[Consumer] = []
        #: Rate-limited warnings about discarded messages, by queue.
        self.discards = RareWarnings(LOG)
        self._woken = False

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def release(self) -> None:
        """Requeue all unacknowledged messages, and disconnect. Idempotent.

        If the connection is lost or the server refuses, they are requeued later, as after a crash.
        """
        for consumer in tuple(self.consumers):
            try:
                consumer.close()
            except Exception as error:
                LOG.debug("a consumer was not closed cleanly: %s", error)
        self.close()

    @abc.abstractmethod
    def declare_exchange(self, name: str) -> None:
        """Create the topic exchange unless it exists."""

    @abc.abstractmethod
    def declare_queue(self, queue: str, *, owned: bool = False) -> None:
        """Create the queue unless it exists.

        An `owned` queue is deleted some time after this process dies. It is not deleted with its
        connections, so messages that arrive during a reconnect are not lost.
        """

    def declare(self, layout: Any, shared: Sequence[str]) -> None:
        layout.declare_queues_on(self, shared)

    def consumer(self, handle: Handle, outbox: object) -> Consumer:
        return Consumer(self, handle)

    def end(self, layout: Any, remove: bool, unused: Sequence[str]) -> None:
        if remove:
            self.delete_queue(layout.topic)

    @abc.abstractmethod
    def delete_queue(self, queue: str) -> int:
        """Delete the queue with its bindings and messages. Return the number of waiting ones."""

    @abc.abstractmethod
    def purge(self, queue: str) -> int:
        """Delete the waiting messages. Return their number."""

    @abc.abstractmethod
    def size(self, queue: str) -> int:
        """Return the number of waiting messages."""

    def silent_queues(self) -> frozenset[str]:
        """Return the owned queues whose owners do not report, and which it deletes soon."""
        return frozenset()

    @abc.abstractmethod
    def bind(self, exchange: str, key: str, queue: str) -> None:
        """Bind the queue. Idempotent.

        :raises ValueError: if the key is too long.
        """

    @abc.abstractmethod
    def unbind(self, exchange: str, key: str, queue: str) -> None:
        """Remove a binding. Idempotent."""

    @abc.abstractmethod
    def bindings(self) -> Iterable[tuple[str, str, str]]:
        """Return all bindings as (queue, exchange, key)."""

    def check_size(self, frame: Frame) -> None:
        """Check that a message is not larger than the server permits.

        :raises TooLarge: if it is.
        """

    @abc.abstractmethod
    def publish_many(self, frames: Sequence[Frame]) -> Iterator[bool]:
        """Publish messages in order. Yield for each whether it was routed to a queue.

        :raises TransportFailure: if a message cannot be written (no space, no permission).
        """

    def open_and_publish(self, rows: Sequence[Opening], frames: Sequence[Frame]) -> Sequence[int]:
        """Open a row for each message, as `Ledger.open` does, and publish all, in one step.

        After a call without a reply, call this again for all requests that are still needed, first
        for those of the failed call. Parts that succeeded are not repeated. Nothing is done for a
        run below its fence. Only brokers whose kind `has_rows` need it. Not thread-safe.

        :returns: the number of queues of each message.
        :raises TransportFailure: if nothing was done.
        """
        raise NotImplementedError

    def finish(self, batch: Sequence[Finish], order: Order | None = None) -> Sequence[bool]:
        """Finish requests of any consumers and, with an `order`, take messages, in one step.

        :returns: for each request whether this process still owned its row. Otherwise the reply is
            neither stored nor published. The reply to a request without a row is published, because
            the row may have been lost; if the row is dropped at the same moment, it may not be.
        """
        if order is None:
            return self._finish(batch, None)[0]
        try:
            finished, order.taken = self._finish(batch, order.take_order)
        except exceptions.TransportFailure:  # Nothing was done.
            order.deliver()
            raise
        except BaseException:
            order.consumer.miss(order)
            raise
        if order.consumer.closed:
            # A step of its connection that requeued all messages may not have seen these.
            for delivery in order.taken:
                self.requeue(delivery, delivered=False)
            order.taken = ()
        return finished

    def _finish(
        self, batch: Sequence[Finish], take_order: Any
    ) -> tuple[Sequence[bool], Sequence[Delivery]]:
        """Implement `finish`; return also the messages taken for `take_order`, unless None.

        Only brokers whose kind `has_rows` need it.

        :raises TransportFailure: if nothing was done.
        """
        raise NotImplementedError

    def prepare_take(self, max_messages: int, queues: Sequence[str]) -> Any:
        """Return the argument with which `finish` takes messages for this connection.

        `finish` may be called on another connection. Afterwards call `confirm_taken` or
        `fail_taken`.

        :returns: None if this broker takes messages only with `take_many`.
        """
        return None

    def confirm_taken(self, take_order: Any, undelivered: Sequence[Delivery]) -> None:
        """Confirm the messages that `finish` took. The `undelivered` ones are requeued."""

    def fail_taken(self, take_order: Any) -> None:
        """Close this connection, because it is unknown which messages `finish` took."""

    @abc.abstractmethod
    def watch(self, queue: str) -> None:
        """Add a watcher for this queue: `wait` also returns when a message arrives.

        Watchers are counted.
        """

    @abc.abstractmethod
    def unwatch(self, queue: str) -> None:
        """Remove one watcher of this queue."""

    @abc.abstractmethod
    def refresh(self) -> int:
        """Poll the watched queues. Return the number of available messages, or more.

        The number may be an estimate that is too high. It is 0 only if no message is available.
        """

    @abc.abstractmethod
    def take_many(self, groups: Sequence[tuple[int, Sequence[str]]]) -> list[tuple[int, Delivery]]:
        """Take messages for this connection, for each group up to its limit, in queue order.

        Each message is returned with the index of its group. All together have at most
        `MAX_BATCH_BYTES`, unless the first one is larger. If `batch` is 1, at most one message is
        returned.
        """

    def fetch(self, deliveries: Iterable[Delivery]) -> None:
        """Load the bodies that are stored out of line."""

    @abc.abstractmethod
    def settle_many(self, deliveries: Sequence[Delivery]) -> bool:
        """Acknowledge and delete messages. Return False if this connection has lost any of them.

        A lost message is one that was requeued or settled since; one whose queue was deleted may
        count as lost. If the connection itself is lost, return False or raise one of
        `recoverable_connection_errors`.
        """

    def refuse(self, delivery: Delivery) -> None:
        """Delete a message whose request does not run.

        A claim that was made with it is undone, so that an authentic request can claim the row.
        """
        self.settle_many((delivery,))

    @abc.abstractmethod
    def requeue(self, delivery: Delivery, *, delivered: bool = True) -> None:
        """Requeue a message in its old place.

        A `delivered` message is marked as redelivered; otherwise the take and the claim are undone.
        If this is impossible now, raise an error, and requeue it when the connection is closed.
        """

    def discard(self, delivery: Delivery, why: str) -> None:
        """Delete a message that cannot be delivered, and log `why`. A folder keeps a copy."""
        self.warn_discarded(delivery, why)
        self.refuse(delivery)

    def warn_discarded(self, delivery: Delivery, why: str) -> None:
        queue = delivery.queue
        self.discards.warn(queue, "a message in queue %s was discarded: %s", queue, why)

    @abc.abstractmethod
    def wait(self, timeout: float | None, queues: Sequence[str] = ()) -> None:
        """Block until a message may have arrived, `nudge` is called, or the timeout has passed.

        :param queues: the queues whose consumers have capacity.
        """

    @abc.abstractmethod
    def nudge(self) -> None:
        """End the current or next `wait`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Free all resources, and requeue taken messages as after a crash. Idempotent."""

    def wake(self) -> None:
        """Let the current or next `drain` return at once."""
        self._woken = True
        self.nudge()

    def drain(self, timeout: float | None = None) -> None:
        """Deliver the available messages, up to the limits; wait if there are none.

        This returns after at least one delivery. Messages that arrive during callbacks, or remain
        after half a second, are left for the next call. Unreadable messages are discarded.

        :param timeout: seconds; None: no limit.
        :raises TimeoutError: if no message arrived in time, or `wake()` was called.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._deliver_available():
                self._woken = False
                return
            if self._woken:
                self._woken = False
                raise TimeoutError("woken")
            seconds_left = None if deadline is None else deadline - time.monotonic()
            if seconds_left is not None and seconds_left <= 0:
                raise TimeoutError("timed out")
            waiting = [each for each in self.consumers if each.queues and each.has_capacity]
            self.wait(seconds_left, [queue for each in waiting for queue in each.queues])

    def _deliver_available(self) -> int:
        upper_bound, delivered = self.refresh(), 0
        until = time.monotonic() + _MAX_DRAIN_SECONDS
        taken: Sequence[tuple[int, Delivery]] = ()
        # Messages may remain from a call in which a callback raised an exception.
        consumers = tuple(self.consumers)
        while True:
            for consumer in consumers:
                if consumer.ready:
                    delivered += consumer.deliver()
            if delivered >= upper_bound or (taken and self.batch > 1 and not self.refresh()):
                return delivered
            if delivered and time.monotonic() >= until:
                return delivered
            requests = [(each, each.reserve()) for each in self.consumers if each.queues]
            requests = [(each, room) for each, room in requests if room > 0]
            consumers = tuple(each for each, _ in requests)
            taken = (
                self.take_many([(room, each.queues) for each, room in requests]) if requests else ()
            )
            for group, delivery in taken:
                consumers[group].ready.append(delivery)
            for consumer in consumers:
                consumer.credit.requested = 0
            if not taken:
                return delivered


class CreditWindow:
    """Unsettled messages of a consumer, and the remaining capacity.

    The capacity is `limit` (0: unlimited) minus the unsettled messages and minus the messages that
    are requested but not received: by the draining thread (`requested`) or by orders.
    `on_capacity()` is called when capacity is freed after that thread found none. Thread-safe
    unless stated otherwise.
    """

    def __init__(self, on_capacity: Callable[[], object]) -> None:
        self.limit = 0
        self.unsettled: dict[Delivery, None] = {}
        self._on_capacity = on_capacity
        self._released: set[Delivery] = set()
        self._lock = threading.Lock()
        self.requested = 0
        self._ordered = 0
        self._starved = False

    def reserve(self, max_messages: int, ready: int) -> int:
        """Reserve and return the capacity beyond `ready` messages, at most `max_messages`.

        Call this only in the draining thread.
        """
        if not self.limit:
            return max_messages
        # Set before reading, so that concurrently freed capacity is noticed either here or by the
        # thread that frees it.
        self._starved = True
        with self._lock:
            self.requested = 0
            self.requested = capacity = max(0, min(max_messages, self._remaining(ready)))
        self._starved = capacity <= 0
        return capacity

    def has_capacity(self, ready: int) -> bool:
        """Return whether `reserve` would find capacity. It replaces the requested capacity."""
        if not self.limit:
            return True
        self._starved = True
        self._starved = starved = self._remaining(ready) + self.requested <= 0
        return not starved

    def reserve_for_order(self, max_messages: int, ready: int) -> int:
        """Reserve capacity for another thread, until `release_order`.

        Returns 0 while the draining thread takes the messages itself, because it finds capacity.
        """
        if not self._starved:
            return 0
        with self._lock:
            capacity = max(0, min(max_messages, self._remaining(ready)))
            self._ordered += capacity
        return capacity

    def release_order(self, ordered: int, count: int) -> None:
        """Release a reservation after `count` of `ordered` messages have arrived."""
        with self._lock:
            self._ordered -= ordered
        if count < ordered:
            self.notify_capacity()

    def _remaining(self, ready: int) -> int:
        count = len(self.unsettled) - len(self._released) + ready
        return self.limit - count - self.requested - self._ordered

    def release(self, messages: Iterable[Delivery]) -> None:
        """Exclude these messages from the limit."""
        self._released |= self.unsettled.keys() & set(messages)

    def settle(self, messages: Iterable[Delivery]) -> list[Delivery]:
        """Remove messages. Return those that were unsettled."""
        settled: list[Delivery] = []
        has_freed = False
        for message in messages:
            counted = message not in self._released
            self._released.discard(message)
            if self.unsettled.pop(message, self) is None:
                settled.append(message)
                has_freed = has_freed or counted
        if has_freed:
            self.notify_capacity()
        return settled

    def notify_capacity(self) -> None:
        """Report that capacity may have increased."""
        if self._starved:
            self._starved = False
            self._on_capacity()


class Order:
    """An order to take at most `max_messages` messages in the step that finishes other requests.

    `Consumer.order` creates it. `Broker.finish` sets `taken`. Then call `deliver`, or
    `Consumer.miss` if it is unknown which messages were taken. `take_order` is the result of
    `Broker.prepare_take`.
    """

    __slots__ = ("consumer", "max_messages", "take_order", "taken")

    def __init__(self, consumer: Consumer, max_messages: int, take_order: Any) -> None:
        self.consumer = consumer
        self.max_messages = max_messages
        self.take_order = take_order
        self.taken: Sequence[Delivery] = ()

    def deliver(self) -> None:
        """Deliver the messages taken, in this thread.

        An exception is logged and closes the connection. Undelivered messages are then requeued as
        if they had not been taken.
        """
        undelivered: Sequence[Delivery] = ()
        try:
            undelivered = self.consumer.receive(self)
            while undelivered:
                message, *undelivered = undelivered
                self.consumer.handle(message)
        except BaseException as error:
            self.consumer.miss(self)
            self.consumer.put_back(undelivered)
            if not isinstance(error, Exception):
                raise
            LOG.exception("failed to deliver received messages")


class Consumer(MessageConsumer):
    """Takes messages from queues and calls `handle(message)` in the draining thread.

    At most `limit` delivered messages are unacknowledged (0: unlimited). When the consumer is
    closed, they are requeued and marked as redelivered.
    """

    def __init__(self, broker: Broker, handle: Handle) -> None:
        self.handle = handle
        self.closed = False
        self._broker = broker
        #: The queues, in the order of preference.
        self.queues: tuple[str, ...] = ()
        #: Messages that were taken but not delivered.
        self.ready: deque[Delivery] = deque()
        self.credit = CreditWindow(broker.nudge)
        self._tags = itertools.count(1)
        self._closing = threading.Lock()
        broker.consumers.append(self)

    def consume(self, queues: Iterable[str], limit: int = 0) -> None:
        """Consume from further queues, which must exist."""
        self.credit.limit = limit
        for queue in queues:
            if queue not in self.queues:
                self._broker.watch(queue)
                self.queues = (*self.queues, queue)
        self._broker.nudge()

    def admits(self, message: Delivery) -> bool:
        return True

    def cancel(self) -> None:
        """Stop taking messages. Messages that were not delivered are requeued."""
        queues, self.queues = self.queues, ()
        for queue in queues:
            self._broker.unwatch(queue)

    def close(self) -> None:
        """Cancel, and requeue unacknowledged messages. Idempotent."""
        with self._closing:
            if self.closed:
                return
            self.closed = True
        self._broker.consumers.remove(self)
        self.cancel()
        self.deliver()
        for message in tuple(self.credit.unsettled):
            self.reject(message, requeue=True)

    @property
    def has_capacity(self) -> bool:
        return self.credit.has_capacity(len(self.ready))

    def reserve(self) -> int:
        """Reserve and return the number of messages that may be taken now."""
        return self.credit.reserve(self._broker.batch, len(self.ready))

    def deliver(self) -> int:
        """Deliver the `ready` messages. Return their number."""
        count = 0
        while self.ready:
            message = self.ready[0]
            is_valid = self.hold(message, self.ready)
            self.ready.popleft()  # Last, because a concurrent order must count the message.
            if is_valid:
                count += 1
                self.handle(message)
        return count

    def hold(self, message: Delivery, ready: Iterable[Delivery]) -> bool:
        """Parse the first of the `ready` messages.

        :returns: False if it is invalid, or was requeued because its queue is not consumed.
        """
        if self.closed or message.queue not in self.queues:
            self._broker.requeue(message, delivered=False)
            return False
        if message.body_location:
            self._broker.fetch(ready)
        if message.data is None:  # The row with the reply was deleted.
            self._broker.refuse(message)
            return False
        message.delivery_tag = next(self._tags)
        try:
            message.parse()
        except _encoding.InvalidMessageError as exc:
            self._broker.discard(message, str(exc))
            if self._broker.on_discard is not None:
                self._broker.on_discard()
            return False
        message.channel = self
        self.credit.unsettled[message] = None
        return True

    def order(self, done: Iterable[Delivery]) -> Order | None:
        """Return an order for the capacity that is free once `done` are settled.

        Pass it to `finish` of any connection to the same broker, then deliver it.

        :returns: None if the consumer is closed or has no capacity, or if its draining thread takes
            the messages.
        """
        self.credit.release(done)
        with self._closing:  # `close` must see all orders.
            if self.closed or not self.queues:
                return None
            max_messages = self.credit.reserve_for_order(self._broker.batch, len(self.ready))
            take_order = (
                self._broker.prepare_take(max_messages, self.queues) if max_messages else None
            )
        if take_order is not None:
            return Order(self, max_messages, take_order)
        self.credit.release_order(max_messages, 0)
        return None

    def receive(self, order: Order) -> list[Delivery]:
        """Return the messages of an order. This consumer now owns them."""
        messages: list[Delivery] = []
        with self._closing:
            if self.closed:
                return []  # The messages are requeued with the connection.
            undelivered = list(order.taken)
            try:
                # Load bodies first: after an error, no message has been delivered.
                self._broker.fetch(undelivered)
                while undelivered:
                    if self.hold(undelivered[0], undelivered):
                        messages.append(undelivered[0])
                    del undelivered[0]
            finally:
                self._broker.confirm_taken(order.take_order, undelivered)
            self.credit.release_order(order.max_messages, len(messages))
        return messages

    def put_back(self, messages: Sequence[Delivery]) -> None:
        """Requeue messages that were not delivered."""
        for message in self.forget_many(messages):
            self._broker.requeue(message, delivered=False)

    def miss(self, order: Order) -> None:
        self._broker.fail_taken(order.take_order)

    def ack_many(self, messages: Sequence[Delivery]) -> bool:
        """Acknowledge messages of this consumer, except settled ones.

        :returns: False if all were settled before, or any was lost.
        """
        own_messages = self.forget_many(messages)
        return bool(own_messages) and self._broker.settle_many(own_messages)

    def forget_many(self, messages: Sequence[Delivery]) -> list[Delivery]:
        """Mark messages as acknowledged. Return the unsettled ones."""
        for message in messages:
            message.acknowledged = True
        return self.credit.settle(messages)

    def release_many(self, messages: Iterable[Delivery]) -> None:
        """Exclude these messages from the limit."""
        self.credit.release(messages)
        self.credit.notify_capacity()

    def reject(self, message: Delivery, requeue: bool) -> None:
        """Requeue a message in its old place, or `Broker.refuse` it."""
        if self.credit.settle((message,)):
            if requeue:
                self._broker.requeue(message)
            else:
                self._broker.refuse(message)


class BrokerWriter(Writer):
    """Publishes on a connection to a broker of wbengine."""

    def __init__(self, broker: Broker, layout: Any) -> None:
        self.broker = broker
        self._layout = layout
        self._exchange = ""

    def open(self) -> None:
        self._exchange = self._layout.declare_on(self.broker)

    def encode(self, message: Any) -> None:
        message.encode(self._exchange, self.broker.labels)
        self.broker.check_size(message)

    def write(self, messages: Sequence[Any]) -> Iterator[bool]:
        return self.broker.publish_many(messages)
