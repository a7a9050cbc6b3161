"""Consume requests from shared queues: at most one for each slot, from the first queue first.

This is how a worker takes a request on RabbitMQ: the broker delivers a message that is not yet
acknowledged to no other worker. With a ledger, the row of the request decides who runs it.
"""

from __future__ import annotations

import abc
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import kombu

from wbengine.engines.worker_based._connections import topology
from wbengine.transports import _safe_message
from wbengine.transports._broker import Broker, Consumer

if TYPE_CHECKING:
    from wbengine.transports._amqp_connection import AmqpChannel, AmqpConnection
    from wbengine.transports._amqp_frames import Delivery

LOG = logging.getLogger(__name__)

#: Seconds after which a running request is acknowledged. RabbitMQ closes a channel whose messages
#: are not acknowledged within 30 minutes.
ACK_AFTER_SECONDS: Final = 600.0


class Prefetcher(abc.ABC):
    """The requests of a process, over all of its connections.

    `held` are the requests that were passed on and not completed. Each uses a slot, even after
    the loss of its connection or an early acknowledgement. `slots` = 0: no limit.

    Call methods only in the consumer's thread; any thread may read and change `held`.
    """

    def __init__(self, queues: Sequence[str], slots: int) -> None:
        self.queues = tuple(queues)
        self.slots = slots
        self.open = True
        self.channel: Any = None
        #: Arrival time of each request, oldest first.
        self.held: dict[Any, float] = {}

    def end(self) -> None:
        self.channel = None

    def pause(self) -> None:
        """Stop consuming. Messages that were delivered before are still passed on."""
        self.open = False
        self._cancel()

    def resume(self) -> None:
        self.open = True
        self.adjust()

    def adjust(self) -> None:
        """Consume as many requests as there are free slots."""
        if self.channel is None or not self.open:
            return
        # The channel counts only its own unacknowledged messages.
        room = self.slots - self._uncounted()
        if self.slots and room <= 0:
            self._cancel()  # For the channel, 0 means no limit.
        else:
            self._take(max(0, room))

    @abc.abstractmethod
    def _take(self, max_requests: int) -> None:
        """Consume at most this number of unacknowledged requests (0: no limit)."""

    @abc.abstractmethod
    def _cancel(self) -> None:
        """Stop consuming until the next `_take`."""

    def _uncounted(self) -> int:
        return sum(message.channel is not self.channel for message in tuple(self.held))

    def is_on_channel(self, message: Any) -> bool:
        return message.channel is self.channel

    def admits(self, message: Any) -> bool:
        """Return whether a delivered message may be passed on; else it is requeued."""
        return self.open

    def free(self, message: Any) -> None:
        if self.held.pop(message, None) is not None and not self.is_on_channel(message):
            self.adjust()


class BrokerPrefetcher(Prefetcher):
    """The prefetcher for a broker of wbengine, which serves queues in order."""

    channel: Consumer | None

    def begin(self, broker: Broker, callback: Callable[[Any], None]) -> None:
        """Consume on a connection; `callback(message)` receives each request."""
        if self.queues:
            self.channel = Consumer(broker, callback)
            self.adjust()

    def _take(self, max_requests: int) -> None:
        assert self.channel is not None
        self.channel.consume(self.queues, max_requests)

    def _cancel(self) -> None:
        if self.channel is not None:
            self.channel.cancel()


class KombuPrefetcher(Prefetcher):
    """The prefetcher for a transport of kombu."""

    def __init__(self, queues: Sequence[str], slots: int) -> None:
        super().__init__(queues, slots)
        #: Whether the broker currently replies to nothing.
        self.blocked = False
        self._acknowledged_early: set[Any] = set()
        self._layout: topology.Topology | None = None
        self._callback: Callable[[Any], None] | None = None
        self._consumer: Any = None

    def begin(
        self,
        connection: Any,
        layout: topology.Topology,
        callback: Callable[[Any], None],
    ) -> None:
        """Consume on a connection; `callback(message)` receives each request.

        With RabbitMQ, the connection is an `AmqpConnection`.
        """
        self._layout = layout
        self._callback = callback
        if self.queues:
            self.channel = self._open(connection)
            self.declare()
            self.adjust()

    def _open(self, connection: Any) -> Any:
        return _safe_message.channel_of(connection)

    def declare(self) -> None:
        assert self._layout is not None
        for name in self.queues:
            self._layout.declare_shared(self.channel, name)

    def end(self) -> None:
        self.channel = self._consumer = None

    def _take(self, max_requests: int) -> None:
        self.channel.basic_qos(0, max_requests, False)
        if self._consumer is None:
            assert self._layout is not None
            queues = [self._layout.shared(self.channel, name) for name in self.queues]
            self._consumer = kombu.Consumer(
                self.channel, queues, on_message=self._callback, auto_declare=False
            )
            self._consumer.consume()

    def _uncounted(self) -> int:
        held = tuple(self.held)
        return sum(m.channel is not self.channel or m in self._acknowledged_early for m in held)

    def _cancel(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.cancel()

    def is_on_channel(self, message: Any) -> bool:
        return message.channel is self.channel and message not in self._acknowledged_early

    def free(self, message: Any) -> None:
        super().free(message)
        self._acknowledged_early.discard(message)

    def run_due(self, now: float) -> None:
        """Acknowledge requests that run for a long time, before the broker closes the channel."""
        for message, arrived_at in tuple(self.held.items()):
            if now - arrived_at < ACK_AFTER_SECONDS:
                break
            if self.is_on_channel(message) and self._acknowledge(message):
                self._acknowledged_early.add(message)
                self.adjust()

    def _acknowledge(self, message: Any) -> bool:
        self._keep_slot(message)
        message.ack()
        return True

    def _keep_slot(self, message: Any) -> None:
        if self.slots:
            room = self.slots - self._uncounted() - 1
            if room <= 0:
                self._cancel()
            else:
                self.channel.basic_qos(0, room, False)

    def next_due(self) -> float | None:
        for message, arrived_at in tuple(self.held.items()):
            if self.is_on_channel(message):
                return arrived_at + ACK_AFTER_SECONDS
        return None


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
