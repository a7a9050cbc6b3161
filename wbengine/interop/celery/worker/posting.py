"""A connection that publishes to a Celery broker, and knows what arrived there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

import kombu

from wbengine import exceptions as exc
from wbengine.engines.worker_based import connecting
from wbengine.interop.celery import brokers
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
        self._confirms: _Confirms | None = None

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
        producer.publish(wire.body, exchange=exchange or "", routing_key=key, **wire.arguments())
        if self._confirms is not None:
            self._confirms.sent += 1

    def flush(self) -> None:
        """Wait until all that was published is with the broker."""
        if self._confirms is not None:
            self._confirms.wait(CONFIRM_TIMEOUT)

    def reset(self) -> None:
        """Leave the connection: the next message goes out over another one."""
        connection, self._connection = self._connection, None
        self._producer = self._confirms = None
        self._declared.clear()
        if connection is not None:
            connecting.release(connection)

    def _open(self, on_failure: Callable[[str], None] | None = None) -> kombu.Producer:
        self._connection = self._broker.reach(self._stopping, within=connecting.ATTEMPT)
        channel = self._connection.channel()
        if self._broker.is_amqp:
            self._confirms = _Confirms(self._connection, channel)
        self._producer = kombu.Producer(channel, auto_declare=False)
        return self._producer

    def _declare(self, name: str) -> None:
        """As Celery's clients do; one that is there with other arguments serves as well."""
        if name in self._declared:
            return
        connection = self._connection
        assert connection is not None
        channel = connection.channel()
        try:
            brokers.queue_named(name)(channel).declare()
        except connection.channel_errors:
            pass  # who cannot declare it may still be able to publish to it
        finally:
            channel.close()
        self._declared.add(name)


class _Confirms:
    """Publisher confirms of one AMQP channel: many may be waited for together."""

    def __init__(self, connection: kombu.Connection, channel: Any) -> None:
        channel.confirm_select()
        channel.events["basic_ack"].add(self._on_ack)
        channel.events["basic_nack"].add(self._on_nack)
        self._connection = connection
        #: How many messages were published; all up to `_low` are confirmed, and these after it.
        self.sent = 0
        self._low = 0
        self._apart: set[int] = set()

    def wait(self, timeout: float) -> None:
        """
        :raises TransportFailure: the broker confirmed nothing for so long, or refused a message.
        """
        until = time.monotonic() + timeout
        while self._low < self.sent:
            left = until - time.monotonic()
            if left <= 0:
                raise exc.TransportFailure(f"the broker confirmed nothing for {timeout:.0f} s")
            before = self._low, len(self._apart)
            try:
                self._connection.drain_events(timeout=left)
            except TimeoutError:
                continue
            if (self._low, len(self._apart)) != before:
                until = time.monotonic() + timeout

    def _on_ack(self, number: int, multiple: bool) -> None:
        if multiple:
            self._low = max(self._low, number)
            self._apart = {each for each in self._apart if each > number}
        else:
            self._apart.add(number)
        while self._low + 1 in self._apart:
            self._low += 1
            self._apart.discard(self._low)

    def _on_nack(self, number: int, multiple: bool) -> None:
        raise exc.TransportFailure("the broker refused to keep a message")
