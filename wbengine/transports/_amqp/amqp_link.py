"""Consume from RabbitMQ: take requests for free slots, and receive messages.

The broker delivers a message that is not yet acknowledged to no other worker, so a delivery takes a
request. With a ledger, the row of the request decides who runs it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import kombu

from wbengine.transports._amqp.amqp_confirms import Outbox, ReplyPublisher, refuses
from wbengine.transports._amqp.amqp_connection import AmqpChannel, AmqpConnection
from wbengine.transports._amqp.amqp_frames import Delivery
from wbengine.transports._broker import MAX_BATCH_BYTES
from wbengine.transports._kombu.kombu_link import KombuLink, PushConsumer


class AmqpConsumer(AmqpChannel, PushConsumer):
    """A consumer for RabbitMQ: each free slot is a separate consumer of the broker.

    Requests are delivered only to free slots. The others remain in the broker, where other workers
    can consume them and the broker orders them by priority.

    RabbitMQ serves the consumers of several queues without an order. Therefore the queues are
    polled in order for each request. This costs a round trip for each empty queue. While all queues
    are empty and slots are free, all queues are consumed until a request arrives.
    """

    def __init__(
        self,
        link: AmqpLink,
        handle: Callable[[Any], object],
        takes_requests: bool,
        connection: AmqpConnection,
        raw: Any,
        exchange: str,
    ) -> None:
        PushConsumer.__init__(self, handle, takes_requests)
        AmqpChannel.__init__(self, connection, raw, exchange)
        self._link = link
        #: Publishes replies.
        self.replies: ReplyPublisher | None = None
        # The last message of each consumer of the broker, by its tag: the position of its queue,
        # and a number. A tag is not used again: when a message is acknowledged, the broker sends
        # another one to the consumer that has its tag then.
        self._last_by_tag: dict[str, Delivery | None] = {}
        self._numbers = itertools.count()
        # Number of delivered messages that are not passed on.
        self._arrived = 0
        self._must_adjust = False

    @property
    def _in_order(self) -> bool:
        return len(self.queues) > 1 and self._limit > 0

    def _adjust(self) -> None:
        if self._in_order:
            self._must_adjust = True
        elif self.queues:
            self._consume_for_slots()

    def _consume_for_slots(self) -> None:
        count = max(0, self._limit - self._uncounted()) if self._limit else len(self.queues)
        if not self._last_by_tag and count:
            self.raw.basic_qos(0, 1 if self._limit else 0, False)
        while len(self._last_by_tag) < count:
            self._add_consumer(len(self._last_by_tag) % len(self.queues))

    def _uncounted(self) -> int:
        """Return the number of unsettled messages that are not the last of their consumers."""
        unsettled = frozenset(self.unsettled)  # Read once: other threads settle messages.
        return len(unsettled) - sum(each in unsettled for each in self._last_by_tag.values())

    def run_due(self, now: float) -> float:
        due = super().run_due(now)
        if self._must_adjust and self.queues:
            self._must_adjust = False
            if self._in_order:
                self._poll_queues()
            else:
                self._consume_for_slots()
        return due

    def _poll_queues(self) -> None:
        """Receive requests while slots are free, each from the first queue that has one."""
        while (room := self._limit - len(self.unsettled)) > 0:
            message = next(filter(None, map(self.get, self.queues)), None)
            if message is None:
                break
            self._receive(message)
        if room <= 0:
            self._stop(nowait=True)
            return
        if not self._last_by_tag:
            self.raw.basic_qos(0, 1, False)
        consumed = {int(tag.partition(".")[0]) for tag in self._last_by_tag}
        for position in range(len(self.queues)):
            if position not in consumed:
                self._add_consumer(position)

    def _add_consumer(self, position: int) -> None:
        tag = f"{position}.{next(self._numbers)}"
        self._last_by_tag[tag] = None
        # Wait for the private queue: if the broker refuses it, the start fails.
        self.start(self.queues[position], tag, self._deliver, nowait=self._takes_requests)

    def _deliver(self, message: Delivery) -> None:
        if message.consumer_tag in self._last_by_tag:
            self._last_by_tag[message.consumer_tag] = message
        self._receive(message)

    def _receive(self, message: Delivery) -> None:
        if self._takes_requests:
            self.unsettled[message] = time.monotonic()
        # Several messages arrive only while an AMQP method waits for its reply.
        elif self._link.is_full(len(message.body)):
            message.requeue()
            return
        self._arrived += 1
        self._link.enqueue(message)

    def pass_on(self, message: Delivery) -> None:
        self._arrived -= 1
        self._handle(message)

    def cancel(self) -> None:
        self.queues = ()
        # This waits for the reply: no delivery follows it.
        self._stop(nowait=self._link.is_blocked)

    def _stop(self, nowait: bool) -> None:
        for tag in tuple(self._last_by_tag):
            self.raw.basic_cancel(tag, nowait=nowait)
        self._last_by_tag.clear()

    def admits(self, message: Delivery) -> bool:
        if self._in_order:
            # The preceding queues must be polled before this consumer gets another request.
            self._cancel_consumer_of(message)
            self._must_adjust = True
        is_within = not self._limit or len(self.unsettled) - self._arrived <= self._limit
        is_admitted = bool(self.queues) and is_within
        if not is_admitted:
            # It uses no slot while it is being returned, and is not acknowledged early.
            self.unsettled.pop(message, None)
        return is_admitted

    def _cancel_consumer_of(self, message: Delivery) -> None:
        """Cancel the consumer of a message, unless it has a later message."""
        tag = message.consumer_tag
        if self._last_by_tag.get(tag, self) is message:
            del self._last_by_tag[tag]
            self.raw.basic_cancel(tag, nowait=True)

    # Settling.

    def ack(self, delivery: Delivery) -> None:
        self._free(delivery)
        super().ack(delivery)

    def ack_many(self, deliveries: Sequence[Delivery]) -> None:
        if not self._takes_requests:
            super().ack_many(deliveries)
            return
        for each in deliveries:
            self._free(each)
        for each in deliveries:
            # One frame for each: `answer` may have claimed a request before, and write it later.
            if self.claim(each):
                self.connection.put(self.receipt(each))
        self.connection.flush()

    def reject(self, delivery: Delivery, requeue: bool) -> None:
        self._free(delivery)
        if self._link.is_open:  # Otherwise the broker has requeued it with its connection.
            super().reject(delivery, requeue)

    def _free(self, message: Delivery) -> None:
        """Free the slot of a message before it is settled: another may arrive at once after it."""
        if self.unsettled.pop(message, None) is None:
            return
        self.acknowledged_early.discard(message)
        # Otherwise the acknowledgement makes the broker deliver the next request.
        is_last = self._last_by_tag.get(message.consumer_tag, self) is message
        if self._in_order or (self._limit and not is_last):
            self._must_adjust = True
            self._link.wake()

    def _acknowledge_early(self, message: Delivery) -> None:
        if self.claim(message):
            self.acknowledged_early.add(message)
            if self._limit:
                self._cancel_consumer_of(message)
            self.connection.put(self.receipt(message))
            self.connection.flush()
            self._adjust()

    def answer(
        self, message: Any, request: Any, freed: Callable[[Any], object], soon: bool
    ) -> bool:
        def free(request: Delivery) -> None:
            self._free(request)
            freed(request)

        return self.replies is not None and self.replies.answer(message, request, free, soon)


class AmqpLink(KombuLink):
    """Consumes from RabbitMQ.

    Messages are passed on after a read: publishing or acknowledging during a read would
    misdirect frames.

    :param replies_from: time after which replies are published on the channels of their requests.
    """

    can_wake = True

    def __init__(self, connection: kombu.Connection, layout: Any, replies_from: float) -> None:
        self._amqp = AmqpConnection(connection)
        super().__init__(connection, layout)
        self._replies_from = replies_from
        # Delivered messages that are not passed on yet, and their size in bytes.
        self._inbox: deque[Delivery] = deque()
        self._inbox_bytes = 0
        self._receive = self._amqp.receive

    def consumer(self, handle: Callable[[Any], object], outbox: Outbox | None) -> AmqpConsumer:
        consumer = self._amqp.channel(
            self._layout.exchange.name,
            functools.partial(AmqpConsumer, self, handle, outbox is not None),
        )
        self._add(consumer, consumer.raw)
        # For TaskFlow's peers, publishing may first need a request to the broker.
        if outbox is not None and not self._layout.interop:
            replies = ReplyPublisher(consumer, self._layout, outbox, self._replies_from)
            consumer.replies = replies
            self._receive = replies.confirms.read
        return consumer

    def is_full(self, size: int) -> bool:
        return bool(self._inbox) and self._inbox_bytes + size > MAX_BATCH_BYTES

    def enqueue(self, message: Delivery) -> None:
        self._inbox.append(message)
        self._inbox_bytes += len(message.body)

    def _next(self) -> Delivery:
        message = self._inbox.popleft()
        self._inbox_bytes -= len(message.body)
        return message

    @property
    def is_blocked(self) -> bool:
        return self._amqp.is_blocked

    def wake(self) -> None:
        self._amqp.wake_up()

    def drain(self, timeout: float | None = None) -> None:
        now = time.monotonic()
        due = self._run_due(now)
        if timeout is None or due - now < timeout:
            timeout = max(0.001, due - now)
        try:
            self._receive(0 if self._inbox else timeout)
        except TimeoutError as error:
            # py-amqp opens a channel again that the broker closed, but without its consumers.
            raise ConnectionError("it does not answer") from error
        if self._inbox:
            with self._amqp.together():
                while self._inbox:
                    message = self._next()
                    message.channel.pass_on(message)

    def together(self) -> contextlib.AbstractContextManager[None]:
        return self._amqp.together()

    def refuses(self, error: BaseException) -> bool:
        return refuses(error)

    def delete_private_queue(self, name: str) -> None:
        if not self._layout.interop:
            self._layout.delete_private_queue(self._connection, name)

    def end(self, layout: Any, remove: bool, unused: Sequence[str]) -> None:
        while self._inbox:  # These were delivered, but not passed on.
            self._next().requeue()
        super().end(layout, remove, unused)
        # The broker regards a queue as empty if all its messages are delivered.
        layout.delete_unused(self._connection, unused)

    def drop(self) -> None:
        self._amqp.drop()

    def detach(self) -> None:
        super().detach()
        self._inbox.clear()
        for consumer in self._consumers:
            if consumer.replies is not None:
                consumer.replies.close()
        self._amqp.close()
