"""The interface of wbengine's own brokers: one connection, its consumers, and their common parts.

A `Broker` publishes messages and delivers those that its `Consumer`s take.

Order: consumers are served in the order of their creation, and the first queue of each is emptied
first. Within a queue, priority 9 comes first; equal priorities are first in, first out for each
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
from typing import Any, Final

from wbengine import exceptions
from wbengine._log_rate import RareWarnings
from wbengine.transports import _encoding

LOG = logging.getLogger(__name__)

#: A message ready to publish: exchange ('': `key` is a queue), key, priority, head, body.
LaidOut = tuple[str, str, int, bytes, bytes]

Handle = Callable[[_encoding.Message], object]

#: Maximum size of a batch that is taken; a larger message is taken alone.
MAX_BATCH_BYTES: Final = 4 * 1024 * 1024

#: Maximum time of one `drain` while messages keep arriving.
_MAX_DRAIN_SECONDS: Final = 0.5


class TakenMessage:
    """A message that was taken from its queue and is not settled; `token` belongs to its broker.

    :ivar claim: the answer of the ledger, if the broker claimed the request in the same step.
    :ivar label: the known part of the label of the claimed row.
    :ivar at: start of that step on the monotonic clock.
    :ivar body_location: location of the body if it is stored out of line; `Broker.fetch` loads it.
    :ivar data: None if the row that contained the message has been deleted.
    """

    __slots__ = (
        "at",
        "body",
        "body_location",
        "claim",
        "data",
        "label",
        "queue",
        "redelivered",
        "token",
    )

    def __init__(self, queue: str, token: Any, data: bytes | None, redelivered: bool) -> None:
        self.queue = queue
        self.claim: Any = None
        self.label = b""
        self.at: float | None = None
        self.token = token
        self.data = data
        self.body = self.body_location = b""
        self.redelivered = redelivered


class Broker(abc.ABC):
    """A connection to one of wbengine's own brokers.

    `refresh`, `take_many`, `watch`, `unwatch`, `wait` and `drain` belong to the thread that drains.
    All other methods may be called from any thread, but none after `close`.
    """

    #: Maximum number of messages in a batch for consumers without a limit.
    batch = 1
    #: Whether the broker reads labels (see `_encoding.label`).
    labels = False
    # Names of kombu.
    recoverable_connection_errors: tuple[type[BaseException], ...] = (ConnectionError,)
    channel_errors: tuple[type[BaseException], ...] = ()

    def __init__(self) -> None:
        self.consumers: list[Consumer] = []
        #: Called for each message that cannot be read.
        self.on_discard: Callable[[], object] | None = None
        #: Rate-limited warnings about such messages, by queue.
        self.discards = RareWarnings(LOG)
        self._woken = False

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def release(self) -> None:
        """Requeue all messages that are not acknowledged, and disconnect. Idempotent.

        If the connection is lost or the server refuses, they are requeued with the connection.
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

        An `owned` queue is deleted when this process dies. It outlives the connection, so that the
        process finds messages that arrive while it reconnects.
        """

    @abc.abstractmethod
    def delete_queue(self, queue: str) -> int:
        """Delete the queue with its messages and bindings. Return the number of messages."""

    @abc.abstractmethod
    def purge(self, queue: str) -> int:
        """Delete the waiting messages. Return their number."""

    @abc.abstractmethod
    def size(self, queue: str) -> int:
        """Return the number of waiting messages."""

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

    def lay_out(self, message: _encoding.Sealed, exchange: str) -> LaidOut:
        """Encode a message for `publish_many`.

        :raises TooLarge: if it exceeds 64 MiB.
        :raises ValueError, TypeError: if a header cannot be encoded as JSON.
        """
        head = _encoding.head_of(message, exchange)
        if self.labels:
            head = _encoding.label(head, message.headers, message.correlation_id)
        return exchange, message.routing_key, message.priority, head, message.encoded

    @abc.abstractmethod
    def publish_many(self, messages: Sequence[LaidOut]) -> Iterator[bool]:
        """Publish messages in order. Yield after each whether it was routed to a queue.

        :raises TransportFailure: if a message cannot be written (no space, no permission).
        """

    def end_many(
        self,
        ended: Sequence[tuple[tuple[str, int], TakenMessage, LaidOut]],
        take_order: Any = None,
    ) -> tuple[Sequence[int], Sequence[TakenMessage]]:
        """Finish requests that were claimed with their messages, in one step.

        For each request, the broker stores its reply in the row (id, epoch), publishes the reply
        and acknowledges the request. With `take_order`, from `prepare_take`, it also takes
        messages.

        :returns: for each reply, the number of queues that received it, or -1 if another process
            owns the row, so that it was not published; and the messages taken.
        """
        raise NotImplementedError

    def answer_many(
        self,
        ended: Sequence[tuple[tuple[str, int], _encoding.Message, LaidOut]],
        order: AnswerAndTake | None = None,
    ) -> Sequence[int]:
        """Finish requests of any consumers with `end_many`, and fill the order."""
        wanted = [(row, message.origin, laid_out) for row, message, laid_out in ended]
        if order is None:
            return self.end_many(wanted)[0]
        try:
            counts, order.taken = self.end_many(wanted, order.take_order)
        except exceptions.TransportFailure:  # Nothing was done.
            order.deliver()
            raise
        except BaseException:
            order.consumer.miss(order)
            raise
        return counts

    def prepare_take(self, most: int, queues: Sequence[str]) -> Any:
        """Return the argument with which `end_many` takes `most` messages for this connection.

        `end_many` may be called on another connection. Afterwards the caller calls
        `confirm_taken` or `fail_taken`.

        :returns: None if messages have to be taken with `take_many`.
        """
        return None

    def confirm_taken(self, take_order: Any, undelivered: Sequence[TakenMessage]) -> None:  # noqa: B027
        """Confirm the messages that `end_many` took. The `undelivered` ones are requeued."""

    def fail_taken(self, take_order: Any) -> None:  # noqa: B027
        """Close this connection, because the messages that `end_many` took are unknown."""

    @abc.abstractmethod
    def watch(self, queue: str) -> None:
        """Add a watcher for this queue: `wait` also returns when a message arrives in it.

        Watchers are counted.
        """

    @abc.abstractmethod
    def unwatch(self, queue: str) -> None:
        """Remove one watcher of this queue."""

    @abc.abstractmethod
    def refresh(self) -> int:
        """Poll the watched queues. Return an upper bound of the number of available messages."""

    @abc.abstractmethod
    def take_many(
        self, groups: Sequence[tuple[int, Sequence[str]]]
    ) -> list[tuple[int, TakenMessage]]:
        """Take messages exclusively: for each group at most its number, the first queue first.

        Each message is returned with the index of its group. Together they have at most
        `MAX_BATCH_BYTES`, unless the first one is larger. If `batch` is 1, at most one message is
        returned.
        """

    def fetch(self, taken: Iterable[TakenMessage]) -> None:  # noqa: B027
        """Load the bodies that are stored out of line."""

    @abc.abstractmethod
    def settle_many(self, taken: Sequence[TakenMessage]) -> bool:
        """Acknowledge and delete messages. Return False if this connection had lost any of them."""

    def refuse(self, taken: TakenMessage) -> None:
        """Acknowledge a message without running its request.

        A claim made with it is undone, so that an authentic request can claim the row.
        """
        self.settle_many((taken,))

    @abc.abstractmethod
    def requeue(self, taken: TakenMessage, *, delivered: bool = True) -> None:
        """Requeue a message in its old place.

        If it was `delivered`, it is marked as redelivered; otherwise the take and the claim are
        undone. If this is impossible now, it happens when the connection is closed.
        """

    @abc.abstractmethod
    def discard(self, taken: TakenMessage, why: str) -> None:
        """Delete a message that cannot be delivered, and log `why`. A folder keeps a copy."""

    @abc.abstractmethod
    def wait(self, timeout: float | None, queues: Sequence[str] = ()) -> None:
        """Block until a message may have arrived, `nudge` is called, or the timeout has passed.

        :param queues: the queues from which messages could be taken.
        """

    @abc.abstractmethod
    def nudge(self) -> None:
        """End the current or next `wait`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Free all resources. Idempotent."""

    def wake(self) -> None:
        """Let the current or next `drain` return at once."""
        self._woken = True
        self.nudge()

    def drain(self, timeout: float | None = None) -> None:
        """Deliver the available messages, up to the limits; wait if there are none.

        Returns after at least one delivery. The next call delivers messages that arrive while
        callbacks run, or that remain after half a second. Unreadable messages are discarded and
        raise no error.

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
        taken_messages: Sequence[tuple[int, TakenMessage]] = ()
        # Messages may remain from an earlier call whose callback raised an exception.
        consumers = tuple(self.consumers)
        while True:
            for consumer in consumers:
                if consumer.ready:
                    delivered += consumer.deliver()
            if delivered >= upper_bound or (
                taken_messages and self.batch > 1 and not self.refresh()
            ):
                return delivered
            if delivered and time.monotonic() >= until:
                return delivered
            requests = [(each, each.reserve()) for each in self.consumers if each.queues]
            requests = [(each, room) for each, room in requests if room > 0]
            consumers = tuple(each for each, _ in requests)
            taken_messages = (
                self.take_many([(room, each.queues) for each, room in requests]) if requests else ()
            )
            for group, taken in taken_messages:
                consumers[group].ready.append(taken)
            for consumer in consumers:
                consumer.credit.requested = 0
            if not taken_messages:
                return delivered


class CreditWindow:
    """Unsettled messages of a consumer by delivery tag, and the remaining capacity.

    At most `limit` (0: unlimited) messages are unsettled, minus those requested and not yet
    received: by the draining thread (`requested`) or by orders. `on_capacity()` is called when
    there is capacity again after that thread found none. Thread-safe unless stated otherwise.
    """

    def __init__(self, on_capacity: Callable[[], object]) -> None:
        self.limit = 0
        self.unsettled: dict[int, TakenMessage] = {}
        self._on_capacity = on_capacity
        self._released: set[int] = set()
        self._lock = threading.Lock()
        self.requested = 0
        self._ordered = 0
        self._starved = False

    def reserve(self, most: int, ready: int) -> int:
        """Reserve and return the capacity beyond `ready` messages, at most `most`.

        Call this only in the draining thread.
        """
        if not self.limit:
            return most
        # Set before reading, so that concurrently freed capacity is noticed either here or by the
        # thread that frees it.
        self._starved = True
        with self._lock:
            self.requested = 0
            self.requested = capacity = max(0, min(most, self._remaining(ready)))
        self._starved = capacity <= 0
        return capacity

    def has_capacity(self, ready: int) -> bool:
        """Return whether there is capacity; like `reserve` without a reservation."""
        if not self.limit:
            return True
        self._starved = True
        self._starved = starved = self._remaining(ready) <= 0
        return not starved

    def reserve_for_order(self, most: int, ready: int) -> int:
        """Reserve capacity for another thread, until `release_order`.

        Returns 0 unless the draining thread found no capacity before; otherwise that thread takes
        the messages itself.
        """
        if not self._starved:
            return 0
        with self._lock:
            capacity = max(0, min(most, self._remaining(ready)))
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

    def release(self, numbers: Iterable[int]) -> None:
        """Exclude these messages from the limit."""
        self._released |= self.unsettled.keys() & set(numbers)

    def settle(self, numbers: Iterable[int]) -> list[TakenMessage]:
        """Remove messages. Return those that were unsettled."""
        settled: list[TakenMessage] = []
        has_freed = False
        for number in numbers:
            counted = number not in self._released
            self._released.discard(number)
            taken = self.unsettled.pop(number, None)
            if taken is not None:
                settled.append(taken)
                has_freed = has_freed or counted
        if has_freed:
            self.notify_capacity()
        return settled

    def notify_capacity(self) -> None:
        """Report that capacity may have increased."""
        if self._starved:
            self._starved = False
            self._on_capacity()


class AnswerAndTake:
    """An order to take at most `most` messages in the step that finishes other requests.

    `Consumer.order` creates it, `Broker.answer_many` fills in `taken`, and `deliver` ends it, or
    `Consumer.miss` if the messages taken are unknown. `take_order` is from `Broker.prepare_take`.
    """

    __slots__ = ("consumer", "most", "take_order", "taken")

    def __init__(self, consumer: Consumer, most: int, take_order: Any) -> None:
        self.consumer = consumer
        self.most = most
        self.take_order = take_order
        self.taken: Sequence[TakenMessage] = ()

    def deliver(self) -> None:
        """Deliver the messages taken, in this thread.

        After an exception, which is logged, the connection is closed and undelivered messages are
        requeued as if they had not been taken.
        """
        undelivered: Sequence[_encoding.Message] = ()
        over = False
        try:
            undelivered = self.consumer.receive(self)
            while undelivered:
                message, *undelivered = undelivered
                self.consumer.handle(message)
            over = True
        except Exception:
            LOG.exception("failed to deliver received messages")
        finally:
            if not over:
                self.consumer.miss(self)
                self.consumer.put_back(undelivered)


class Consumer:
    """Takes messages from queues and calls `handle(message)` in the draining thread.

    At most `limit` messages are delivered and not acknowledged (0: unlimited). When it is closed,
    unacknowledged messages are requeued, marked as redelivered.
    """

    def __init__(self, broker: Broker, handle: Handle) -> None:
        self.handle = handle
        self.closed = False
        self._broker = broker
        #: The queues, in the order in which they are emptied.
        self.queues: tuple[str, ...] = ()
        #: Messages taken and not delivered.
        self.ready: deque[TakenMessage] = deque()
        self.credit = CreditWindow(broker.nudge)
        self._tags = itertools.count(1)
        self._closing = threading.Lock()
        broker.consumers.append(self)

    def consume(self, queues: Iterable[str], limit: int = 0) -> None:
        """Consume from further existing queues."""
        self.limit(limit)
        for queue in queues:
            if queue not in self.queues:
                self._broker.watch(queue)
                self.queues = (*self.queues, queue)
        self._broker.nudge()

    def limit(self, most: int) -> None:
        """Set the maximum number of unsettled messages."""
        self.credit.limit = most
        self._broker.nudge()

    def cancel(self) -> None:
        """Stop taking messages. Delivered ones stay unacknowledged, the others are requeued."""
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
        for tag in tuple(self.credit.unsettled):
            self.reject(tag, requeue=True)

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
            message = self.hold(self.ready[0], self.ready)
            self.ready.popleft()  # Last, because concurrent orders must count it.
            if message is not None:
                count += 1
                self.handle(message)
        return count

    def hold(self, taken: TakenMessage, ready: Iterable[TakenMessage]) -> _encoding.Message | None:
        """Convert the first of the `ready` messages.

        :returns: None if it cannot be read, or was requeued because its queue is not consumed.
        """
        if self.closed or taken.queue not in self.queues:
            self._broker.requeue(taken, delivered=False)
            return None
        if taken.body_location:
            self._broker.fetch(ready)
        if taken.data is None:  # The reply was read from the row.
            self._broker.refuse(taken)
            return None
        tag = next(self._tags)
        try:
            message = _encoding.Message(taken.data, self, tag, taken.redelivered, taken.body)
            if taken.claim is not None and not _encoding.has_label(message, taken.label):
                raise _encoding.InvalidMessageError("its label names the row of another request")
        except _encoding.InvalidMessageError as exc:
            self._broker.discard(taken, str(exc))
            if self._broker.on_discard is not None:
                self._broker.on_discard()
            return None
        message.claim, message.taken, message.origin = taken.claim, taken.at, taken
        taken.data = taken.body = b""
        self.credit.unsettled[tag] = taken
        return message

    def order(self, done: Iterable[_encoding.Message]) -> AnswerAndTake | None:
        """Return an order for the capacity that is free once `done` are settled.

        Pass it to `answer_many` of any connection to the same broker, then deliver it.

        :returns: None if the consumer is closed or has no capacity, or if its draining thread takes
            the messages itself.
        """
        self.credit.release([message.delivery_tag for message in done])
        with self._closing:  # `close` must see all orders.
            if self.closed or not self.queues:
                return None
            most = self.credit.reserve_for_order(self._broker.batch, len(self.ready))
            take_order = self._broker.prepare_take(most, self.queues) if most else None
        if take_order is not None:
            return AnswerAndTake(self, most, take_order)
        self.credit.release_order(most, 0)
        return None

    def receive(self, order: AnswerAndTake) -> list[_encoding.Message]:
        """Return the messages of an order. From here on this consumer owns them."""
        messages: list[_encoding.Message] = []
        with self._closing:
            if self.closed:
                return []  # Unseen messages are requeued with the connection.
            undelivered = list(order.taken)
            try:
                # Done first, so that no message was delivered if it fails.
                self._broker.fetch(undelivered)
                while undelivered:
                    message = self.hold(undelivered[0], undelivered)
                    if message is not None:
                        messages.append(message)
                    del undelivered[0]
            finally:
                self._broker.confirm_taken(order.take_order, undelivered)
            self.credit.release_order(order.most, len(messages))
        return messages

    def put_back(self, messages: Iterable[_encoding.Message]) -> None:
        """Requeue messages that were not delivered."""
        for taken in self.forget_many(messages):
            self._broker.requeue(taken, delivered=False)

    def miss(self, order: AnswerAndTake) -> None:
        self._broker.fail_taken(order.take_order)

    def ack_many(self, messages: Iterable[_encoding.Message]) -> bool:
        """Acknowledge messages of this consumer, except those that are settled.

        :returns: False if all were settled before, or one was lost.
        """
        own_messages = self.forget_many(messages)
        return bool(own_messages) and self._broker.settle_many(own_messages)

    def forget_many(self, messages: Iterable[_encoding.Message]) -> list[TakenMessage]:
        """Mark messages as acknowledged. Return those that this consumer held."""
        tags = []
        for message in messages:
            message.acknowledged = True
            tags.append(message.delivery_tag)
        return self.credit.settle(tags)

    def release_many(self, messages: Iterable[_encoding.Message]) -> None:
        """Exclude these messages from the limit."""
        self.credit.release([message.delivery_tag for message in messages])
        self.credit.notify_capacity()

    def reject(self, tag: int, requeue: bool) -> None:
        """Requeue a message in its old place, or acknowledge it without running its request."""
        for taken in self.credit.settle([tag]):
            if requeue:
                self._broker.requeue(taken)
            else:
                self._broker.refuse(taken)
