"""Requests from shared queues: never more than there are slots, the first queue first."""

from __future__ import annotations

import abc
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import kombu

from wbengine.engines.worker_based.connections import topology
from wbengine.transports import safe_message
from wbengine.transports.broker import Broker, Consumer

if TYPE_CHECKING:
    from wbengine.engines.worker_based.connections import amqp_connection
    from wbengine.transports._amqp_frames import Delivery

LOG = logging.getLogger(__name__)

#: Seconds after which a request that still runs is acknowledged: RabbitMQ closes a channel that
#: owes an acknowledgement for 30 minutes.
ACK_AFTER: Final = 600.0


class Prefetcher(abc.ABC):
    """The requests that one process takes, over all of its connections.

    `held` are those that were handed out and not given back yet; each occupies a slot, also when
    the connection it came on is gone, and when it was acknowledged early.  0 `slots`: no limit; no
    `queues`: it takes none.

    All is to be called on the consumer's thread, except that `held` may be read and changed
    anywhere.
    """

    def __init__(self, queues: Sequence[str], slots: int) -> None:
        self.queues = tuple(queues)
        self.slots = slots
        self.open = True
        self.channel: Any = None
        #: When each came, oldest first.
        self.held: dict[Any, float] = {}

    def end(self) -> None:
        """The connection is over, or will be: what came on it cannot be acknowledged any more."""
        self.channel = None

    def pause(self) -> None:
        """Take nothing more.  What was delivered until now is still handed out."""
        self.open = False
        self._cancel()

    def resume(self) -> None:
        """Take again."""
        self.open = True
        self.adjust()

    def adjust(self) -> None:
        """Take as much as there are free slots."""
        if self.channel is None or not self.open:
            return
        # The channel limits what is not acknowledged, but does not know of all that is held.
        room = self.slots - self._unknown()
        if self.slots and room <= 0:
            self._cancel()  # to the channel, 0 means: no limit
        else:
            self._take(max(0, room))

    @abc.abstractmethod
    def _take(self, most: int) -> None:
        """Take so many, 0: without a limit, besides those that the channel does not count."""

    @abc.abstractmethod
    def _cancel(self) -> None:
        """Take nothing, for now."""

    def _unknown(self) -> int:
        """How many slots are occupied by what the channel does not count."""
        return sum(message.channel is not self.channel for message in tuple(self.held))

    def is_ours(self, message: Any) -> bool:
        """Whether a message can still be acknowledged."""
        return message.channel is self.channel

    def admits(self, message: Any) -> bool:
        """Whether what was delivered is to be handed out; else it goes back."""
        return self.open

    def free(self, message: Any) -> None:
        """Its slot is free again."""
        if self.held.pop(message, None) is not None and not self.is_ours(message):
            self.adjust()


class BrokerPrefetcher(Prefetcher):
    """Of a broker of ours: queues are served in their order."""

    channel: Consumer | None

    def begin(self, broker: Broker, callback: Callable[[Any], None]) -> None:
        """Take from a connection; `callback(message)` for each."""
        if self.queues:
            self.channel = Consumer(broker, callback)
            self.adjust()

    def _take(self, most: int) -> None:
        assert self.channel is not None
        self.channel.consume(self.queues, most)

    def _cancel(self) -> None:
        if self.channel is not None:
            self.channel.cancel()


class KombuPrefetcher(Prefetcher):
    """Of a transport of kombu's own."""

    def __init__(self, queues: Sequence[str], slots: int) -> None:
        super().__init__(queues, slots)
        #: Whether the broker answers nothing for now.
        self.blocked = False
        self._early: set[Any] = set()
        self._layout: topology.Topology | None = None
        self._callback: Callable[[Any], None] | None = None
        self._consumer: Any = None

    # A connection.

    def begin(
        self,
        connection: Any,
        layout: topology.Topology,
        callback: Callable[[Any], None],
    ) -> None:
        """Take from a connection (RabbitMQ: an `AmqpConnection`); `callback(message)` for each."""
        self._layout = layout
        self._callback = callback
        if self.queues:
            self.channel = self._open(connection)
            self.declare()
            self.adjust()

    def _open(self, connection: Any) -> Any:
        return safe_message.channel_of(connection)

    def declare(self) -> None:
        """Declare the queues (again)."""
        assert self._layout is not None
        for name in self.queues:
            self._layout.declare_shared(self.channel, name)

    def end(self) -> None:
        self.channel = self._consumer = None

    def _take(self, most: int) -> None:
        self.channel.basic_qos(0, most, False)
        if self._consumer is None:
            assert self._layout is not None
            queues = [self._layout.shared(self.channel, name) for name in self.queues]
            self._consumer = kombu.Consumer(
                self.channel, queues, on_message=self._callback, auto_declare=False
            )
            self._consumer.consume()

    def _unknown(self) -> int:
        held = tuple(self.held)
        return sum(m.channel is not self.channel or m in self._early for m in held)

    def _cancel(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.cancel()

    # A request.

    def is_ours(self, message: Any) -> bool:
        return message.channel is self.channel and message not in self._early

    def free(self, message: Any) -> None:
        super().free(message)
        self._early.discard(message)

    def turn(self, now: float) -> None:
        """Acknowledge what runs for long: the broker would lose patience.  Its slot stays taken."""
        for message, came in tuple(self.held.items()):
            if now - came < ACK_AFTER:
                break
            if self.is_ours(message) and self._acknowledge(message):
                self._early.add(message)
                self.adjust()

    def _acknowledge(self, message: Any) -> bool:
        """Its slot stays taken; False: somebody else did so in this moment."""
        self._retire(message)
        message.ack()
        return True

    def _retire(self, message: Any) -> None:
        """It is about to be acknowledged, and keeps its slot."""
        if self.slots:
            room = self.slots - self._unknown() - 1
            if room <= 0:
                self._cancel()
            else:
                self.channel.basic_qos(0, room, False)

    def next_due(self) -> float | None:
        """When `turn` has something to do."""
        for message, came in tuple(self.held.items()):
            if self.is_ours(message):
                return came + ACK_AFTER
        return None


class AmqpPrefetcher(KombuPrefetcher):
    """The same of a RabbitMQ, which counts per consumer: each free slot is a consumer of its own.

    Nothing is delivered that no slot is free for, so that what waits is with the broker, where
    other workers and higher priorities reach it.

    Several queues are asked one after the other, for each request, since RabbitMQ serves consumers
    in turn and knows no order among queues: that is a round trip for each queue that is empty.
    While all of them are, and slots are free, it consumes all, until something comes.
    """

    def __init__(self, queues: Sequence[str], slots: int) -> None:
        super().__init__(queues, slots)
        #: The channel, which any thread may acknowledge on.
        self.amqp: amqp_connection.AmqpChannel | None = None
        # By tag: what its consumer was given last, if anything.
        self._serving: dict[str, Any] = {}
        self._arrived: set[Any] = set()
        # Whether something happened that may let it take more; several things count as one.
        self._stale = False

    def _open(self, connection: amqp_connection.AmqpConnection) -> Any:
        assert self._layout is not None
        self.amqp = connection.channel(self._layout.exchange.name)
        return self.amqp.raw

    @property
    def _in_order(self) -> bool:
        return len(self.queues) > 1 and self.slots > 0

    def end(self) -> None:
        super().end()
        self.amqp = None
        self._serving.clear()
        self._arrived.clear()

    def adjust(self) -> None:
        if self.channel is None or not self.open:
            return
        if self._in_order:
            self._stale = True
            return
        wanted = max(0, self.slots - self._unknown()) if self.slots else len(self.queues)
        if not self._serving and wanted:
            self.channel.basic_qos(0, 1 if self.slots else 0, False)
        names = self._names()
        for number in itertools.count():
            if len(self._serving) >= wanted:
                break
            self._consume(f"{number}", names[number % len(names)])

    def _unknown(self) -> int:
        held, arrived = self.held, self._arrived
        known = sum(each in held or each in arrived for each in tuple(self._serving.values()))
        return len(held) + len(arrived) - known

    def turn(self, now: float) -> None:
        super().turn(now)
        if self._stale and self.channel is not None and self.open:
            self._stale = False
            self._look()

    def _look(self) -> None:
        """Take from the first queue that has something, while slots are free."""
        names = self._names()
        while (room := self._room()) > 0:
            assert self.amqp is not None
            message = next(filter(None, map(self.amqp.get, names)), None)
            if message is None:
                break
            self._hand(message)
        if room <= 0:
            self._cancel()
            return
        if not self._serving:
            self.channel.basic_qos(0, 1, False)
        for number, name in enumerate(names):
            self._consume(f"{number}", name)

    def _room(self) -> int:
        return self.slots - len(self.held) - len(self._arrived)

    def _names(self) -> list[str]:
        assert self._layout is not None
        return [self._layout.shared_name(name) for name in self.queues]

    def _consume(self, tag: str, name: str) -> None:
        if tag not in self._serving:
            assert self.amqp is not None
            self._serving[tag] = None
            self.amqp.consume(name, tag, self._deliver, nowait=True)

    def _deliver(self, message: Delivery) -> None:
        if message.consumer_tag in self._serving:
            self._serving[message.consumer_tag] = message
        self._hand(message)

    def _hand(self, message: Any) -> None:
        self._arrived.add(message)
        assert self._callback is not None
        self._callback(message)

    def _cancel(self) -> None:
        for tag in tuple(self._serving):
            # Waited for when nothing more is to come: what came until then was delivered by then.
            self.channel.basic_cancel(tag, nowait=self.open or self.blocked)
        self._serving.clear()

    def admits(self, message: Any) -> bool:
        self._arrived.discard(message)
        if self._in_order:
            # Before its consumer gets more, the queues before it are asked.
            tag = _tag(message)
            if self._serving.pop(tag, None) is not None:
                self.channel.basic_cancel(tag, nowait=True)
            self._stale = True
        return self.open and (not self.slots or len(self.held) < self.slots)

    def free(self, message: Any) -> None:
        if self.held.pop(message, None) is None:
            return
        self._early.discard(message)
        # Else its consumer is free: it is acknowledged, so that the next may come.
        if self._in_order or self._serving.get(_tag(message), self) is not message:
            self.adjust()

    def let_go(self, message: Delivery) -> bool:
        """`free` what is being acknowledged, from any thread; whether `adjust` is to be called."""
        self.held.pop(message, None)
        return self._in_order or self._serving.get(message.consumer_tag) is not message

    def _acknowledge(self, message: Any) -> bool:
        channel = self.amqp
        if channel is None or not channel.claim(message):
            return False
        self._retire(message)
        channel.connection.put(channel.receipt(message))
        channel.connection.flush()
        return True

    def _retire(self, message: Any) -> None:
        tag = _tag(message)
        if self.slots and self._serving.get(tag, self) is message:
            del self._serving[tag]
            self.channel.basic_cancel(tag, nowait=True)


def _tag(message: Any) -> str:
    return str((message.delivery_info or {}).get("consumer_tag"))
