"""Consume from RabbitMQ: take requests for free slots, and receive messages.

The broker delivers a message that is not yet acknowledged to no other worker, so a delivery takes a
request. With a ledger, the row of the request decides who runs it.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import kombu

from wbengine import transports
from wbengine.engines.worker_based._connections import topology
from wbengine.engines.worker_based._connections.amqp_confirms import ReplyPublisher
from wbengine.engines.worker_based._connections.kombu_connection import (
    KombuPrefetcher,
    KombuReceiver,
)
from wbengine.engines.worker_based._connections.receiver import OWN_TAG, Consume
from wbengine.transports._amqp_connection import AmqpChannel, AmqpConnection
from wbengine.transports._amqp_frames import Delivery
from wbengine.transports._broker import MAX_BATCH_BYTES


class AmqpPrefetcher(KombuPrefetcher):
    """The prefetcher for RabbitMQ: each free slot is a separate consumer.

    Requests are delivered only to free slots. The others remain in the broker, where other workers
    can consume them and the broker orders them by priority.

    RabbitMQ serves the consumers of several queues without an order. Therefore the queues are
    polled in order for each request. This costs a round trip for each empty queue. While all queues
    are empty and slots are free, all queues are consumed until a request arrives.
    """

    def __init__(self, queues: Sequence[str], slots: int) -> None:
        super().__init__(queues, slots)
        #: The channel for acknowledgements, thread-safe; None if it is closed.
        self.amqp: AmqpChannel | None = None
        # The last message of each consumer, by its tag.
        self._last_by_consumer: dict[str, Any] = {}
        self._arrived: set[Any] = set()
        self._must_poll = False

    def _open(self, connection: AmqpConnection) -> Any:
        assert self._layout is not None
        self.amqp = connection.channel(self._layout.exchange.name)
        return self.amqp.raw

    @property
    def _in_order(self) -> bool:
        return len(self.queues) > 1 and self.slots > 0

    def end(self) -> None:
        super().end()
        self.amqp = None
        self._last_by_consumer.clear()
        self._arrived.clear()

    def adjust(self) -> None:
        if self.channel is None or not self.open:
            return
        if self._in_order:
            self._must_poll = True
            return
        consumer_count = max(0, self.slots - self._uncounted()) if self.slots else len(self.queues)
        if not self._last_by_consumer and consumer_count:
            self.channel.basic_qos(0, 1 if self.slots else 0, False)
        names = self._names()
        for number in itertools.count():
            if len(self._last_by_consumer) >= consumer_count:
                break
            self._consume(f"{number}", names[number % len(names)])

    def _uncounted(self) -> int:
        held, arrived = self.held, self._arrived
        counted = sum(
            each in held or each in arrived for each in tuple(self._last_by_consumer.values())
        )
        return len(held) + len(arrived) - counted

    def run_due(self, now: float) -> None:
        super().run_due(now)
        if self._must_poll and self.channel is not None and self.open:
            self._must_poll = False
            self._poll_queues()

    def _poll_queues(self) -> None:
        """Receive requests while slots are free, each from the first queue that has one."""
        names = self._names()
        while (room := self._free_slots()) > 0:
            assert self.amqp is not None
            message = next(filter(None, map(self.amqp.get, names)), None)
            if message is None:
                break
            self._pass_on(message)
        if room <= 0:
            self._cancel()
            return
        if not self._last_by_consumer:
            self.channel.basic_qos(0, 1, False)
        for number, name in enumerate(names):
            self._consume(f"{number}", name)

    def _free_slots(self) -> int:
        return self.slots - len(self.held) - len(self._arrived)

    def _names(self) -> list[str]:
        assert self._layout is not None
        return [self._layout.shared_name(name) for name in self.queues]

    def _consume(self, tag: str, name: str) -> None:
        if tag not in self._last_by_consumer:
            assert self.amqp is not None
            self._last_by_consumer[tag] = None
            self.amqp.consume(name, tag, self._deliver, nowait=True)

    def _deliver(self, message: Delivery) -> None:
        if message.consumer_tag in self._last_by_consumer:
            self._last_by_consumer[message.consumer_tag] = message
        self._pass_on(message)

    def _pass_on(self, message: Any) -> None:
        self._arrived.add(message)
        assert self._callback is not None
        self._callback(message)

    def _cancel(self) -> None:
        for tag in tuple(self._last_by_consumer):
            # A pause waits for the reply: no delivery follows it.
            self.channel.basic_cancel(tag, nowait=self.open or self.blocked)
        self._last_by_consumer.clear()

    def admits(self, message: Any) -> bool:
        self._arrived.discard(message)
        if self._in_order:
            # The preceding queues must be polled before this consumer gets another request.
            self._cancel_consumer_of(message)
            self._must_poll = True
        return self.open and (not self.slots or len(self.held) < self.slots)

    def free(self, message: Any) -> None:
        if self.held.pop(message, None) is None:
            return
        self._acknowledged_early.discard(message)
        # Otherwise the acknowledgement makes the broker deliver the next request.
        if self._in_order or self._last_by_consumer.get(_tag(message), self) is not message:
            self.adjust()

    def free_acknowledged(self, message: Delivery) -> bool:
        """`free` an acknowledged request in any thread; return whether `adjust` must be called."""
        self.held.pop(message, None)
        return self._in_order or self._last_by_consumer.get(message.consumer_tag) is not message

    def _acknowledge(self, message: Any) -> bool:
        channel = self.amqp
        if channel is None or not channel.claim(message):
            return False
        self._keep_slot(message)
        channel.connection.put(channel.receipt(message))
        channel.connection.flush()
        return True

    def _keep_slot(self, message: Any) -> None:
        if self.slots:
            self._cancel_consumer_of(message)

    def _cancel_consumer_of(self, message: Any) -> None:
        """Cancel the consumer of a message, unless a later one has its tag."""
        tag = _tag(message)
        if self._last_by_consumer.get(tag, self) is message:
            del self._last_by_consumer[tag]
            self.channel.basic_cancel(tag, nowait=True)


def _tag(message: Any) -> str:
    return str((message.delivery_info or {}).get("consumer_tag"))


class AmqpReceiver(KombuReceiver):
    """Consumes from RabbitMQ.

    Messages are passed on after a read: publishing or acknowledging during a read would
    misdirect frames.
    """

    def __init__(
        self,
        connection: kombu.Connection,
        target: transports.Target,
        layout: topology.Topology,
        work: AmqpPrefetcher,
        refused: Counter[str],
    ) -> None:
        super().__init__(connection, target, layout, work, refused)
        self._amqp = AmqpConnection(connection)
        # Delivered messages that are not passed on yet, and their size in bytes.
        self._inbox: deque[tuple[Consume, Any]] = deque()
        self._inbox_bytes = 0
        self.wake = self._amqp.wake_up

    def _begin(self, on_own: Consume, on_work: Consume, replies_from: float) -> None:
        channel = self._amqp.channel()
        self.channel = channel.raw
        self._own = self._layout.declare_own(self.channel)
        channel.consume(self._own.name, OWN_TAG, lambda message: self._enqueue_own(on_own, message))
        work = self._work
        work.begin(self._amqp, self._layout, lambda message: self._enqueue(on_work, message))
        assert isinstance(work, AmqpPrefetcher)
        # For TaskFlow's peers, publishing may first need a request to the broker.
        if work.amqp is not None and not self._layout.interop:
            self.replies = ReplyPublisher(work.amqp, self._layout, self._send, replies_from)

    def _enqueue(self, handle: Consume, message: Any) -> None:
        self._inbox.append((handle, message))
        self._inbox_bytes += len(message.body)

    def _enqueue_own(self, handle: Consume, message: Any) -> None:
        # Several messages arrive only while an AMQP method waits for its reply.
        if self._inbox and self._inbox_bytes + len(message.body) > MAX_BATCH_BYTES:
            message.requeue()
        else:
            self._enqueue(handle, message)

    def _next(self) -> tuple[Consume, Any]:
        handle, message = self._inbox.popleft()
        self._inbox_bytes -= len(message.body)
        return handle, message

    @property
    def is_blocked(self) -> bool:  # type: ignore[override]
        return self._amqp.is_blocked

    def drain(self, timeout: float) -> None:
        assert self._echo is not None
        due = self._echo.next_due()
        if self._work.queues:
            due = min(due, self._work.next_due() or due)
            self._work.blocked = self.is_blocked
        timeout = min(timeout, max(0.001, due - time.monotonic()))
        receive = self._amqp.receive if self.replies is None else self.replies.confirms.read
        receive(0 if self._inbox else timeout)
        if self._inbox:
            with self._amqp.together():
                while self._inbox:
                    handle, message = self._next()
                    handle(message)

    def together(self) -> contextlib.AbstractContextManager[None]:
        return self._amqp.together()

    def delete_private_queue(self, name: str) -> None:
        if not self._layout.interop:
            self._layout.delete_private_queue(self._connection, name)

    def _stop(self) -> None:
        while self._inbox:  # These were delivered, but not passed on.
            _, message = self._next()
            message.requeue()
        self.channel.basic_cancel(OWN_TAG)

    def end(self, remove: bool) -> None:
        if self.is_blocked:
            return  # The broker would not read the commands.
        super().end(remove)
        # The broker regards a queue as empty if all its messages are delivered.
        self._layout.delete_unused(self._connection, () if self._work.held else self._work.queues)

    def drop(self) -> None:
        self._amqp.drop()

    def close(self) -> None:
        self._inbox.clear()
        super().close()
        if self.replies is not None:
            self.replies.close()
        self._amqp.close()
