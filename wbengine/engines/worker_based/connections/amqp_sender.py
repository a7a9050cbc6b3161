"""Publishing to a RabbitMQ, which confirms what it got."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import kombu
from amqp import exceptions as amqp_errors

from wbengine import exceptions as exc
from wbengine import transports
from wbengine._crash import crashpoint
from wbengine.engines.worker_based.connections import topology
from wbengine.engines.worker_based.connections.amqp_connection import AmqpConnection
from wbengine.engines.worker_based.connections.outgoing import OutgoingMessage, by_hooks
from wbengine.engines.worker_based.connections.publisher_confirms import (
    WINDOW,
    PublisherConfirms,
    Sent,
    refuses,
)
from wbengine.engines.worker_based.connections.sender import Sender, call
from wbengine.transports import reasons


class AmqpSender(Sender):
    """What was confirmed is published; more is sent meanwhile.

    Any thread writes, the sender's own reads what the broker confirms.  What it did not confirm in
    time is published again, as what a lost connection interrupted.
    """

    _writer: PublisherConfirms | None

    def __init__(self, target: transports.Target, layout: topology.Topology, name: str) -> None:
        super().__init__(target, layout, name)
        # What to ring while the broker is waited for.
        self._connection: AmqpConnection | None = None
        # One at a time, until something is confirmed: what goes wrong then is the fault of one, and
        # a broker that takes nothing is not given the same again and again.
        self._careful = False

    def _wake(self) -> None:
        super()._wake()
        if self._connection is not None:
            self._connection.ring()

    @property
    def is_blocked(self) -> bool:
        connection = self._connection
        return connection is not None and connection.is_blocked

    @property
    def _idle(self) -> bool:
        return super()._idle and (self._writer is None or self._writer.is_idle)

    @property
    def _room(self) -> int:
        return 0 if self._writer is None else self._writer.room

    @property
    def _is_free(self) -> bool:
        # With TaskFlow's peers one may have to ask the broker first.
        asks = self._careful or self._layout.interop
        return not asks and self._room > 0 and self._lost is None and not self._closed.is_set()

    def _use(self, connection: kombu.Connection) -> None:
        amqp = AmqpConnection(connection)
        confirms = None
        try:
            channel = amqp.channel(self._layout.exchange.name)
            window = 1 if self._careful else WINDOW
            confirms = PublisherConfirms(channel, self._layout, self._confirmed, window)
            with self._lock:
                self._connection, self._writer, self._lost = amqp, confirms, None
            while not self._closed.is_set():
                self._turn_with(confirms)
        except Exception as error:
            amqp.drop()
            if isinstance(error, amqp_errors.NotFound):
                self.astray()
            if confirms is not None:
                self._blame(confirms, error)
            if isinstance(error, self._reconnects.errors):
                raise
            raise exc.TransportFailure(reasons.explain(error)) from error
        finally:
            with self._lock:
                self._connection = None
            if confirms is not None:
                self._recall(confirms)
            amqp.close()

    def _turn_with(self, confirms: PublisherConfirms) -> None:
        with self._lock:
            now = time.monotonic()
            waits = now < (at := self._next())
            wait = self._sleep_for(at, now) if waits else 0.0
        if not waits:
            self._act(now)
        try:
            spoke = confirms.read(wait)
            if spoke and at == math.inf and not (self._careful or self._flushing):
                self._looks_at = math.inf
                confirms.gather()
        finally:
            self._looks_at = -math.inf

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
        except self._reconnects.errors:  # as it asked the broker first; it stays where it is
            raise
        except Exception as error:
            self._fail(message, error)
            return
        message.sent = True
        if not confirms.send(prepared):
            message.sent = False

    def _confirmed(self, confirmed: Sequence[Sent]) -> None:
        self._reconnects.told = ""
        if self._careful and self._writer is not None:
            self._careful = False
            self._writer.widen()
        for sent in confirmed:
            if sent.returned:
                self.astray()
                call(sent.message.hooks.unrouted, sent.message)
        routed = [sent.message for sent in confirmed if not sent.returned]
        for hooks, group in by_hooks(routed).items():
            call(hooks.sent, group)

    def _blame(self, confirms: PublisherConfirms, error: Exception) -> None:
        """What the broker would refuse for ever fails, as soon as it is known which one it is."""
        suspect = confirms.unconfirmed[0] if len(confirms.unconfirmed) == 1 else None
        if suspect is not None and self._careful and refuses(error):
            confirms.unconfirmed.clear()
            self._fail(suspect.message, error)
        self._careful = bool(confirms.unconfirmed)

    def _recall(self, confirms: PublisherConfirms) -> None:
        """It is not known what became of what was written and not confirmed."""
        again = []
        with self._lock:
            left = confirms.close()
            self._settled.wait_for(lambda: not self._sending)
        for sent in left:
            message = sent.message
            if message.hooks.repeats or self._closed.is_set():
                message.sent = False
                again.append(message)
            else:
                call(message.hooks.uncertain, message)
        with self._lock:
            self._queue.extendleft(reversed(again))
            if self._queue:
                self._due = -math.inf
            self._writer = None
