"""Consume and publish with a transport of kombu."""

from __future__ import annotations

import functools
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import kombu

from wbengine import transports
from wbengine._concurrency.crash_points import crashpoint
from wbengine.engines.worker_based._connections import topology
from wbengine.engines.worker_based._connections.consumer_loop import ConsumerLoop
from wbengine.engines.worker_based._connections.receiver import Consume, Prefetcher, Receiver
from wbengine.engines.worker_based._connections.sender import OutgoingMessage, Sender
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.transports import _safe_message

LOG = logging.getLogger(__name__)

#: Seconds after which a running request is acknowledged. RabbitMQ closes a channel whose messages
#: are not acknowledged within 30 minutes.
ACK_AFTER_SECONDS: Final = 600.0


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


class KombuReceiver(Receiver):
    def __init__(
        self,
        connection: kombu.Connection,
        target: transports.Target,
        layout: topology.Topology,
        work: KombuPrefetcher,
        refused: Counter[str],
    ) -> None:
        super().__init__(target, layout, refused)
        self._connection = connection
        self._work = work
        self._own: Any = None
        self._consumer: Any = None

    def _begin(self, on_own: Consume, on_work: Consume) -> None:
        self.channel = _safe_message.channel_of(self._connection)
        self._own = self._layout.declare_own(self.channel)
        queues = [self._own, *self._layout.declare_common(self.channel)]
        self._consumer = kombu.Consumer(self.channel, queues, on_message=on_own, auto_declare=False)
        self._consumer.consume()
        self._work.begin(self._connection, self._layout, on_work)
        self.wake = getattr(self._connection.transport, "wake", None)

    def _declare(self) -> None:
        self._own = self._layout.declare_own(self.channel)
        self._layout.declare_common(self.channel)
        self._work.declare()

    def run_due(self, now: float) -> None:
        super().run_due(now)
        if self._work.queues:
            self._work.run_due(now)

    def drain(self, timeout: float) -> None:
        self._connection.drain_events(timeout=timeout)

    def _stop(self) -> None:
        self._consumer.cancel()

    def end(self, remove: bool) -> None:
        self._work.pause()
        self._stop()
        if remove and not self._layout.interop:
            self._own.delete()

    def close(self) -> None:
        self._work.end()


class KombuWriter:
    """Publishes with kombu's producer, one message at a time."""

    together = False

    def __init__(self, connection: kombu.Connection, layout: topology.Topology) -> None:
        self._channel = connection.channel()
        self._layout = layout
        exchange = layout.declare_exchange(self._channel)
        self._producer = kombu.Producer(self._channel, exchange=exchange, auto_declare=False)
        self._peers = topology.PeerQueues(layout, amqp=False)

    def encode(self, message: OutgoingMessage) -> None:
        """Do nothing: kombu encodes the message."""

    def write(self, messages: Sequence[OutgoingMessage]) -> Iterator[bool]:
        for message in messages:
            self._publish(message.envelope)
            yield True  # kombu does not report missing queues.

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


class KombuSender(Sender):
    """A sender for a transport of kombu other than AMQP."""

    def _writer_of(self, connection: kombu.Connection) -> KombuWriter:
        return KombuWriter(connection, self._layout)


class KombuConsumerLoop(ConsumerLoop):
    """Consumes with a transport of kombu. The consumer's thread acknowledges."""

    def _receiver_of(self, connection: Any) -> Receiver:
        return KombuReceiver(connection, self._target, self._topology, self.work, self._refused)

    def _prefetcher(self, queues: Sequence[str], slots: int) -> Prefetcher:
        return KombuPrefetcher(queues, slots)

    def ack_many(self, messages: Sequence[Any]) -> None:
        # Messages that were acknowledged together with their replies need no call.
        held = self.work.held
        unacknowledged = [each for each in messages if not each.acknowledged or each in held]
        if unacknowledged:
            # One call for each: the connection may be lost in between.
            self._ack_soon(unacknowledged)
            self._wake_consumer()

    def ack_later(self, *messages: Any) -> None:
        self._ack_soon(messages)

    def _ack_soon(self, messages: Iterable[Any]) -> None:
        self._pending_calls.extend(functools.partial(self._settle, each, _ack) for each in messages)

    def _settle(self, message: Any, how: Callable[[Any], None]) -> None:
        work = self.work
        if message in work.held:
            if work.is_on_channel(message):
                how(message)
            work.free(message)
        elif message.channel in (self.channel, work.channel):
            how(message)

    def _on_work(self, message: Any) -> None:
        work = self.work
        if not work.admits(message):
            self.return_unstarted(message)
            return
        work.held[message] = time.monotonic()
        self._handle(message)
        if message.acknowledged and message in work.held:
            work.free(message)


def _ack(message: Any) -> None:
    crashpoint("proxy.before-ack")
    try:
        message.ack()
        crashpoint("proxy.after-ack")
    except OSError as error:
        LOG.debug("message %s cannot be acknowledged (%s)", message.delivery_tag, error)
    except Exception as error:
        LOG.warning("message %s cannot be acknowledged (%s)", message.delivery_tag, error)
