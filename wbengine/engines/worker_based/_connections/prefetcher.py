"""Consume requests from shared queues: at most one for each slot, from the first queue first."""

from __future__ import annotations

import abc
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import kombu

from wbengine.engines.worker_based._connections import topology
from wbengine.transports import _safe_message
from wbengine.transports._broker import Broker, Consumer

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
