"""Publish with a transport of kombu."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import kombu

from wbengine.transports._publishing import Writer


class KombuWriter(Writer):
    """Publishes with kombu's producer, one message at a time."""

    together = False

    def __init__(self, connection: kombu.Connection, layout: Any) -> None:
        self._connection = connection
        self._layout = layout
        self._peers = layout.peer_queues(amqp=False)
        self._channel: Any = None
        self._producer: Any = None

    def open(self) -> None:
        self._channel = self._connection.channel()
        exchange = self._layout.declare_exchange(self._channel)
        self._producer = kombu.Producer(self._channel, exchange=exchange, auto_declare=False)

    def encode(self, message: Any) -> None:
        """Do nothing: kombu encodes the message."""

    def write(self, messages: Sequence[Any]) -> Iterator[bool]:
        for message in messages:
            self._publish(message.envelope)
            yield True  # kombu does not report missing queues.

    def _publish(self, envelope: Any) -> None:
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
