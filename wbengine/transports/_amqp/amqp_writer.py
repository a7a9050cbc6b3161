"""Publish to RabbitMQ with publisher confirms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import kombu
from amqp import exceptions as amqp_errors

from wbengine import exceptions as exc
from wbengine.transports import _reasons
from wbengine.transports._amqp.amqp_confirms import (
    MAX_UNCONFIRMED,
    Outbox,
    PublisherConfirms,
    Sent,
    refuses,
)
from wbengine.transports._amqp.amqp_connection import AmqpChannel, AmqpConnection
from wbengine.transports._publishing import Writer


class AmqpWriter(Writer):
    """A writer that continues to publish while it waits for confirms.

    After a missing confirm, messages are published again, as after a lost connection.

    :param is_careful: whether to publish one message at a time, until one is confirmed. Then an
        error can be attributed to a message, and a failing broker does not receive a whole batch
        repeatedly.
    """

    confirms = True

    def __init__(
        self, connection: kombu.Connection, layout: Any, outbox: Outbox, is_careful: bool
    ) -> None:
        self._errors: tuple[type[Exception], ...] = (
            *connection.recoverable_connection_errors,
            exc.TransportFailure,
        )
        self._amqp = AmqpConnection(connection)
        self._layout = layout
        self._outbox = outbox
        self.is_careful = is_careful
        self._confirms: PublisherConfirms | None = None

    def open(self) -> None:
        channel = self._amqp.channel(self._layout.exchange.name, AmqpChannel)
        window = 1 if self.is_careful else MAX_UNCONFIRMED
        self._confirms = PublisherConfirms(channel, self._layout, self._report, window)

    @property
    def confirming(self) -> PublisherConfirms:
        assert self._confirms is not None, "the writer is not open"
        return self._confirms

    @property
    def is_blocked(self) -> bool:
        return self._amqp.is_blocked

    @property
    def is_idle(self) -> bool:
        return self.confirming.is_idle

    @property
    def room(self) -> int:
        return self.confirming.room

    @property
    def is_shared(self) -> bool:
        # For TaskFlow's peers, publishing may first need a request to the broker.
        return not (self.is_careful or self._layout.interop)

    def encode(self, message: Any) -> None:
        """Do nothing: `write` encodes the message."""

    def write(self, messages: Sequence[Any]) -> Iterator[None]:
        confirms = self.confirming
        try:
            for message in messages:
                prepared = confirms.prepare(message)
                message.sent = True  # First, because another thread reports the confirm.
                if not confirms.send(prepared):
                    message.sent = False
                yield None
        finally:  # Also if a message cannot be encoded: those before it are written.
            self._amqp.flush()

    def wake(self) -> None:
        self._amqp.wake_up()

    def read(self, timeout: float | None, gathers: bool) -> None:
        if self.confirming.read(timeout) and gathers and not self.is_careful:
            self.confirming.gather()

    def _report(self, confirmed: Sequence[Sent]) -> None:
        if self.is_careful:
            self.is_careful = False
            self.confirming.widen()
        self._outbox.report_sent(
            [sent.message for sent in confirmed if not sent.returned],
            [sent.message for sent in confirmed if sent.returned],
        )

    def fail(self, error: Exception) -> Exception:
        self._amqp.drop()
        if isinstance(error, amqp_errors.NotFound):
            self._outbox.report_missing_queue()
        if self._confirms is not None:
            self._blame(self._confirms, error)
        if isinstance(error, self._errors):
            return error
        return exc.TransportFailure(_reasons.explain(error))

    def _blame(self, confirms: PublisherConfirms, error: Exception) -> None:
        """Fail the message that the broker refuses, if it can be identified."""
        suspect = confirms.unconfirmed[0] if len(confirms.unconfirmed) == 1 else None
        if suspect is not None and self.is_careful and refuses(error):
            confirms.unconfirmed.clear()
            self._outbox.fail(suspect.message, error)
        self.is_careful = bool(confirms.unconfirmed)

    def close(self) -> Sequence[Any]:
        unconfirmed = [] if self._confirms is None else self._confirms.close()
        self._amqp.close()
        return [sent.message for sent in unconfirmed]
