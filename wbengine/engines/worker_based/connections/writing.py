"""Messages as kombu's own transports are given them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import kombu

from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.connections import topology
from wbengine.engines.worker_based.messages import envelope as env

__all__ = ["Introductions", "Writer"]


class Introductions:
    """The queues that this side declared for others, as TaskFlow's peers do for each other.

    `amqp`: a queue goes there with whoever read it, and one that nobody reads stays for ever.
    """

    def __init__(self, layout: topology.Topology, amqp: bool) -> None:
        self._layout = layout
        self._amqp = amqp
        self._declared: set[str] = set()

    def make(self, channel: Any, envelope: env.Envelope) -> None:
        """Declare the queue of whoever is written to, where that is of use."""
        if not self._layout.interop:
            return
        key, kind = envelope.routing_key, envelope.type
        if self._amqp:
            if kind == pr.RESPONSE:
                # Its engine may be about to come back, and waits for it; its queue went with it.
                self._declared.discard(key)
            elif kind != pr.NOTIFY or envelope.body:
                return  # of no use to who is not there
        if key not in self._declared:
            self._layout.declare_shared(channel, key)
            self._declared.add(key)


class Writer:
    """Publishes on one connection, through kombu's producer, one after the other."""

    together = False

    def __init__(self, connection: kombu.Connection, layout: topology.Topology) -> None:
        self.channel = connection.channel()
        self._layout = layout
        exchange = layout.declare_exchange(self.channel)
        self._producer = kombu.Producer(self.channel, exchange=exchange, auto_declare=False)
        self._introductions = Introductions(layout, amqp=False)

    def prepare(self, envelope: env.Envelope) -> env.Envelope:
        """The message of an envelope."""
        return envelope

    def write(self, messages: Iterable[env.Envelope]) -> Iterator[bool]:
        """Publish, in order; whether there was a queue, as soon as one is published."""
        for envelope in messages:
            self._publish(envelope)
            yield True  # as far as anybody can tell

    def _publish(self, envelope: env.Envelope) -> None:
        keys: Iterable[str] = (envelope.routing_key,)
        if self._layout.direct:
            now = time.monotonic()
            keys = self._layout.queues_of(self.channel, envelope.routing_key, now)
        self._introductions.make(self.channel, envelope)
        for key in keys:
            self._producer.publish(
                envelope.encoded,
                routing_key=key,
                content_type="application/json",
                content_encoding="utf-8",
                type=envelope.type,
                correlation_id=envelope.correlation_id,
                reply_to=envelope.reply_to,
                headers=envelope.headers,
                priority=envelope.priority,
            )
