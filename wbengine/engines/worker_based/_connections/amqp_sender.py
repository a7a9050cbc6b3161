"""Publish to RabbitMQ with publisher confirms."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import kombu
from amqp import exceptions as amqp_errors

from wbengine import exceptions as exc
from wbengine import transports
from wbengine._concurrency.crash_points import crashpoint
from wbengine.engines.worker_based._connections import topology
from wbengine.engines.worker_based._connections.amqp_confirms import (
    MAX_UNCONFIRMED,
    PublisherConfirms,
    Sent,
    refuses,
)
from wbengine.engines.worker_based._connections.sender import (
    OutgoingMessage,
    Sender,
    by_hooks,
    call,
)
from wbengine.transports import _reasons
from wbengine.transports._amqp.amqp_connection import AmqpConnection


class AmqpSender(Sender):
    """A sender that continues to publish while it waits for confirms.

    Any thread publishes; the sender's thread reads confirms. After a missing confirm, messages
    are published again, as after a lost connection.
    """

    _writer: PublisherConfirms | None

    def __init__(self, target: transports.Target, layout: topology.Topology, name: str) -> None:
        super().__init__(target, layout, name)
        # Set while the sender's thread waits for the broker: the connection to wake.
        self._connection: AmqpConnection | None = None
        # Whether to publish one message at a time, until one is confirmed. Then an error can be
        # attributed to a message, and a failing broker does not receive a whole batch repeatedly.
        self._one_at_a_time = False

    def _wake(self) -> None:
        super()._wake()
        if self._connection is not None:
            self._connection.wake_up()

    @property
    def is_blocked(self) -> bool:
        connection = self._connection
        return connection is not None and connection.is_blocked

    @property
    def _is_idle(self) -> bool:
        return super()._is_idle and (self._writer is None or self._writer.is_idle)

    @property
    def _room(self) -> int:
        return 0 if self._writer is None else self._writer.room

    @property
    def _can_send(self) -> bool:
        # For TaskFlow's peers, publishing may first need a request to the broker.
        asks = self._one_at_a_time or self._layout.interop
        return (
            not asks
            and self._room > 0
            and self._connection_error is None
            and not self._closed.is_set()
        )

    def _use(self, connection: kombu.Connection) -> None:
        amqp = AmqpConnection(connection)
        confirms = None
        try:
            channel = amqp.channel(self._layout.exchange.name)
            window = 1 if self._one_at_a_time else MAX_UNCONFIRMED
            confirms = PublisherConfirms(channel, self._layout, self._confirmed, window)
            with self._lock:
                self._connection, self._writer, self._connection_error = amqp, confirms, None
            while not self._closed.is_set():
                self._run_and_read(confirms)
        except Exception as error:
            amqp.drop()
            if isinstance(error, amqp_errors.NotFound):
                self.on_missing_queue()
            if confirms is not None:
                self._blame(confirms, error)
            if isinstance(error, self._reconnects.errors):
                raise
            raise exc.TransportFailure(_reasons.explain(error)) from error
        finally:
            with self._lock:
                self._connection = None
            if confirms is not None:
                self._recall(confirms)
            amqp.close()

    def _run_and_read(self, confirms: PublisherConfirms) -> None:
        with self._lock:
            now = time.monotonic()
            waits = now < (at := self._next_due())
            wait = self._sleep_for(at, now) if waits else 0.0
        if not waits:
            self._run_due(now)
        try:
            has_data = confirms.read(wait)
            if has_data and at == math.inf and not (self._one_at_a_time or self._flushing):
                self._wakes_at = math.inf
                confirms.gather()
        finally:
            self._wakes_at = -math.inf

    def _publish(self, messages: list[OutgoingMessage], writer: PublisherConfirms) -> None:
        crashpoint("sender.before-publish")
        try:
            for message in messages:
                self._write(writer, message)
        finally:
            self._done(())
        writer.channel.connection.flush()
        crashpoint("sender.after-publish")

    def _write(self, confirms: PublisherConfirms, message: OutgoingMessage) -> None:
        try:
            prepared = confirms.prepare(message)
        # The request to the broker failed; the message remains in the queue.
        except self._reconnects.errors:
            raise
        except Exception as error:
            self._fail(message, error)
            return
        message.sent = True
        if not confirms.send(prepared):
            message.sent = False

    def _confirmed(self, confirmed: Sequence[Sent]) -> None:
        self._reconnects.last_logged = ""
        if self._one_at_a_time and self._writer is not None:
            self._one_at_a_time = False
            self._writer.widen()
        for sent in confirmed:
            if sent.returned:
                self.on_missing_queue()
                call(sent.message.hooks.unrouted, sent.message)
        routed = [sent.message for sent in confirmed if not sent.returned]
        for hooks, group in by_hooks(routed).items():
            call(hooks.sent, group)

    def _blame(self, confirms: PublisherConfirms, error: Exception) -> None:
        """Fail the message that the broker refuses, if it can be identified."""
        suspect = confirms.unconfirmed[0] if len(confirms.unconfirmed) == 1 else None
        if suspect is not None and self._one_at_a_time and refuses(error):
            confirms.unconfirmed.clear()
            self._fail(suspect.message, error)
        self._one_at_a_time = bool(confirms.unconfirmed)

    def _recall(self, confirms: PublisherConfirms) -> None:
        to_resend = []
        with self._lock:
            unconfirmed = confirms.close()
        self._settled.wait_for(lambda: not self._is_sending)
        for sent in unconfirmed:
            message = sent.message
            if message.hooks.repeats or self._closed.is_set():
                message.sent = False
                to_resend.append(message)
            else:
                call(message.hooks.uncertain, message)
        with self._lock:
            self._queue.extendleft(reversed(to_resend))
            if self._queue:
                self._due = -math.inf
            self._writer = None
