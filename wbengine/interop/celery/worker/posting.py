"""A connection that publishes to a Celery broker, and knows what arrived there."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Final

import kombu

from wbengine import exceptions as exc
from wbengine.engines.worker_based.connections import connecting
from wbengine.interop.celery import brokers
from wbengine.interop.celery.confirms import Confirms
from wbengine.interop.celery.protocol.wire import Wire

__all__ = ["Post"]

#: Seconds that a broker has to confirm what it was sent.
CONFIRM_TIMEOUT: Final = 15.0


class Post:
    """Publish to a broker, connected when it is first needed; of one thread.

    What was published is with the broker when `flush` returns.  Whatever is raised means that
    nobody knows of anything since the last `flush`, and `reset` has to be called.
    """

    def __init__(self, broker: brokers.Broker, stopping: threading.Event) -> None:
        self._broker = broker.sending()
        self._stopping = stopping
        #: What is raised when the broker is away, besides what all transports raise.
        self.errors = broker.errors
        self._connection: kombu.Connection | None = None
        self._producer: kombu.Producer | None = None
        self._declared: set[str] = set()
        self._confirms: Confirms[None] | None = None

    @property
    def refusals(self) -> tuple[type[BaseException], ...]:
        """What a broker says of one message that it does not take; others may go."""
        connection = self._connection
        return () if connection is None else tuple(connection.channel_errors)

    def publish(
        self,
        wire: Wire,
        queue: str | None = None,
        exchange: str | None = None,
        routing_key: str | None = None,
        *,
        declare: bool = True,
    ) -> None:
        """Send a message to a queue, or to an exchange.

        A queue is made when it is not there, unless `declare` says that it must not be.
        """
        producer = self._producer or self._open()
        if exchange or queue is None:
            key = routing_key or queue or ""
        else:
            exchange, key = "", queue
            if declare:
                self._declare(queue)
        if self._confirms is not None:
            self._confirms.expect(None)
        producer.publish(wire.body, exchange=exchange or "", routing_key=key, **wire.arguments())

    def flush(self) -> None:
        """Wait until all that was published is with the broker.

        :raises TransportFailure: it confirmed nothing for `CONFIRM_TIMEOUT`, or refused a message.
        """
        if self._confirms is None or self._connection is None:
            return
        before, until = -1, 0.0
        while left := len(self._confirms):
            now = time.monotonic()
            if left != before:
                before, until = left, now + CONFIRM_TIMEOUT
            if now >= until:
                raise exc.TransportFailure(
                    f"the broker confirmed nothing for {CONFIRM_TIMEOUT:.0f} s"
                )
            with contextlib.suppress(TimeoutError):
                self._connection.drain_events(timeout=until - now)

    def reset(self) -> None:
        """Leave the connection: the next message goes out over another one."""
        connection, self._connection = self._connection, None
        self._producer = self._confirms = None
        self._declared.clear()
        if connection is not None:
            connecting.release(connection)

    def _open(self) -> kombu.Producer:
        self._connection = self._broker.reach(self._stopping, within=connecting.ATTEMPT)
        channel = self._connection.channel()
        if self._broker.is_amqp:
            self._confirms = Confirms(channel, _settled)
        self._producer = kombu.Producer(channel, auto_declare=False)
        return self._producer

    def _declare(self, name: str) -> None:
        """As Celery's clients do; one that is there with other arguments serves as well."""
        if name in self._declared:
            return
        connection = self._connection
        assert connection is not None
        # Who cannot declare it may still be able to publish to it.
        with contextlib.suppress(*connection.channel_errors):
            brokers.declare(connection, brokers.queue_named(name))
        self._declared.add(name)


def _settled(what: None, kept: bool) -> None:
    if not kept:
        raise exc.TransportFailure("the broker refused to keep a message")
