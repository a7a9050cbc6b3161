"""Declarations on the broker: an exchange, a private queue, and shared queues."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final

import kombu

from wbengine._introspection import object_names
from wbengine._security.keys import NONE as NO_KEYS
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.transports._broker import Broker

LOG = logging.getLogger(__name__)

TASKFLOW: Final = "taskflow"

#: Seconds after which a broker removes an unused queue.
QUEUE_EXPIRES_SECONDS: Final = 7 * 24 * 3600
BRIEF_QUEUE_EXPIRES_SECONDS: Final = 600

MAX_PRIORITY: Final = 9

_BROADCASTS: Final = (env.ALL_WORKERS, env.ALL_ENGINES)

#: Seconds after its last message for which a peer receives broadcasts.
_ACTIVE_PEER_SECONDS: Final = 60.0

_MAX_COMMON_BROADCASTS: Final = 10

# The default queue type of a virtual host may not support expiry and priorities.
_CLASSIC_QUEUE: Final = {"x-queue-type": "classic"}


def check_interop(
    interop: str | None, ledger: str | None = None, keys: object = None
) -> str | None:
    """Check `interop` together with other options, and return it.

    :raises ValueError: if it is not supported, or conflicts with an option.
    """
    if interop not in (None, TASKFLOW):
        near = object_names.hint(str(interop), (TASKFLOW,))
        raise ValueError(f"interop must be {TASKFLOW!r} or None, got {interop!r}{near}")
    if interop and ledger not in (None, "none"):
        raise ValueError(
            f"interop={interop!r} does not support a ledger: TaskFlow's workers have none"
        )
    if interop and keys not in (None, NO_KEYS):
        raise ValueError(
            f"interop={interop!r} does not support keys: TaskFlow's peers do not sign"
            " messages, so every client that can write to the queues of these topics can"
            " run tasks"
        )
    return interop


def check_interop_topics(interop: str | None, topics: Sequence[str]) -> None:
    """Check that an engine with `interop` has exact topics.

    :raises ValueError: if it has none, or patterns.
    """
    if not interop:
        return
    if not topics:
        raise ValueError(
            f"interop={interop!r} requires topics: TaskFlow's workers do not announce"
            " themselves, so the engine queries each topic"
        )
    for topic in topics:
        try:
            object_names.check_label("topic", topic)
        except ValueError as error:
            raise ValueError(
                f"interop={interop!r} requires exact topics, not patterns: {error}"
            ) from None


class Topology:
    """Durable queues on a topic exchange: one private queue, and shared ones for requests.

    RabbitMQ removes a queue that had no consumers and was not declared for a week (the private
    queue of a worker: for ten minutes), and the exchange with its last queue. Engines resend the
    requests of a removed queue as soon as there is a worker for them.

    With `direct` there is no exchange, because most of kombu's transports keep bindings in the
    memory of one process. A broadcast is sent to each recently active peer, and to a common queue,
    from which one of the other peers consumes it.

    With `interop='taskflow'`, everything is declared as TaskFlow declares it: a direct exchange,
    transient queues that are deleted with their last consumer, and one queue for each topic.
    """

    def __init__(
        self,
        exchange: str,
        topic: str,
        bindings: Sequence[str],
        interop: str | None,
        *,
        direct: bool = False,
    ) -> None:
        self.interop = check_interop(interop)
        self.direct = direct and not interop
        self._name = object_names.check_label("exchange", exchange)
        self.topic = topic
        self._bindings = tuple(bindings)
        #: Whether the private queue belongs to a worker. No other process takes it over.
        self.is_brief = False
        self._last_seen: dict[str, float] = {}
        if self.direct:
            self.exchange = kombu.Exchange("")
        elif interop:
            self.exchange = kombu.Exchange(exchange, durable=False, auto_delete=True)
        else:
            # It is deleted with its last queue, even if that queue expires.
            self.exchange = kombu.Exchange(exchange, type="topic", durable=True, auto_delete=True)

    def declare_on(self, broker: Broker) -> str:
        broker.declare_exchange(self._name)
        return self._name

    def declare_queues_on(self, broker: Broker, shared: Iterable[str]) -> None:
        self.declare_on(broker)
        broker.declare_queue(self.topic, owned=True)
        for key in (self.topic, *self._bindings):
            broker.bind(self._name, key, self.topic)
        for name in shared:
            broker.declare_queue(name)
            broker.bind(self._name, name, name)

    @property
    def own_queues(self) -> list[str]:
        """The private queue, and the common queues."""
        return [self.shared_name(self.topic), *self._common_names]

    @property
    def _common_names(self) -> list[str]:
        return [self._common_name(name) for name in self._bindings] if self.direct else []

    def declare_exchange(self, channel: Any) -> Any:
        exchange = self.exchange(channel)
        exchange.declare()
        return exchange

    def declare_own(self, channel: Any) -> Any:
        if self.interop or self.direct:
            return self.declare_shared(channel, self.topic)
        exchange = self.declare_exchange(channel)
        queue = kombu.Queue(
            self.topic,
            exchange,
            routing_key=self.topic,
            durable=True,
            expires=BRIEF_QUEUE_EXPIRES_SECONDS if self.is_brief else QUEUE_EXPIRES_SECONDS,
            queue_arguments=dict(_CLASSIC_QUEUE),
        )(channel)
        queue.declare()
        for key in self._bindings:
            queue.bind_to(exchange, routing_key=key)
        return queue

    def declare_common(self, channel: Any) -> None:
        """Declare the common queues, which replace the bindings."""
        for name in self._common_names:
            self.declare_shared(channel, name)

    def _common_name(self, key: str) -> str:
        return f"{self._name}.{key}"

    def record_peer(self, name: Any, now: float) -> None:
        """Record a message of a peer with this name, which may be any received value."""
        if isinstance(name, str) and object_names.is_label(name):
            self._last_seen[name] = now

    def queues_of(self, channel: Any, key: str, now: float) -> list[str]:
        """Return the queues for a message with this routing key, without an exchange."""
        if key not in _BROADCASTS:
            return [key]
        # A copy, because the consumer's thread adds peers.
        for name, at in tuple(self._last_seen.items()):
            if now - at >= _ACTIVE_PEER_SECONDS:
                del self._last_seen[name]
        common = self._common_name(key)
        # The common queue may have no consumer.
        crowded = channel.queue_declare(common).message_count >= _MAX_COMMON_BROADCASTS
        return [*self._last_seen, *(() if crowded else (common,))]

    def shared_name(self, name: str) -> str:
        return f"{self._name}_{name}" if self.interop else name

    def shared(self, channel: Any, name: str) -> Any:
        options: dict[str, Any] = {"durable": True}
        if self.interop:
            options = {"durable": False, "auto_delete": True}
        elif not self.direct:
            options |= {"expires": QUEUE_EXPIRES_SECONDS, "max_priority": MAX_PRIORITY}
            options |= {"queue_arguments": dict(_CLASSIC_QUEUE)}
        queue = kombu.Queue(self.shared_name(name), self.exchange, routing_key=name, **options)
        return queue(channel)

    def declare_shared(self, channel: Any, name: str) -> Any:
        self.declare_exchange(channel)
        queue = self.shared(channel, name)
        queue.declare()
        return queue

    def delete_unused(self, connection: kombu.Connection, queues: Sequence[str]) -> None:
        """Remove the shared queues that are empty and have no other consumer.

        The broker checks these conditions, because only the broker can do it without a race.
        """
        if self.interop:
            return  # These queues are removed automatically.
        for name in queues:
            # An error closes the channel.
            with connection.channel() as channel:
                try:
                    declared = channel.queue_declare(name, passive=True)
                    if not (declared.message_count or declared.consumer_count):
                        channel.queue_delete(name, if_unused=True, if_empty=True)
                except connection.channel_errors as error:
                    LOG.debug("queue %s was not deleted or does not exist: %s", name, error)

    def delete_private_queue(self, connection: kombu.Connection, name: str) -> None:
        """Remove the private queue of a stopped process, unless it is used."""
        with connection.channel() as channel:
            try:
                channel.queue_delete(name, if_unused=True)
            except connection.channel_errors as error:
                LOG.debug("queue %s was not deleted: %s", name, error)

    def peer_queues(self, amqp: bool) -> PeerQueues:
        return PeerQueues(self, amqp)


class PeerQueues:
    """Queues that this process declared for its peers, as TaskFlow's peers do.

    With `amqp`, a queue is deleted with its last consumer.
    """

    def __init__(self, layout: Topology, amqp: bool) -> None:
        self._layout = layout
        self._amqp = amqp
        self._declared: set[str] = set()

    def declare(self, channel: Any, envelope: env.Envelope) -> None:
        if not self._layout.interop:
            return
        key, kind = envelope.routing_key, envelope.type
        if self._amqp:
            if kind == pr.RESPONSE:
                # A reconnecting engine may wait for the reply: its queue was deleted with its
                # connection.
                self._declared.discard(key)
            elif kind != pr.NOTIFY or envelope.body:
                return  # Without a receiver, this message is useless.
        if key not in self._declared:
            self._layout.declare_shared(channel, key)
            self._declared.add(key)
