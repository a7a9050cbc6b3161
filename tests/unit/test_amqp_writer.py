"""Messages that a writer for RabbitMQ appends and sends."""

from __future__ import annotations

from typing import Any

import pytest

from wbengine.transports._amqp import amqp_writer


class Connection:
    """A connection that counts the calls of `flush`."""

    flushes = 0

    def flush(self) -> None:
        self.flushes += 1


class Confirms:
    """Appends all messages except None, which cannot be encoded."""

    def __init__(self) -> None:
        self.appended: list[Any] = []

    def prepare(self, message: Any) -> Any:
        if message is None:
            raise ValueError("it cannot be encoded")
        return message

    def send(self, message: Any) -> bool:
        self.appended.append(message)
        return True


class Message:
    sent = False


def test_messages_before_one_that_cannot_be_encoded_are_sent() -> None:
    connection: Any = Connection()
    confirms: Any = Confirms()
    writer = amqp_writer.AmqpWriter.__new__(amqp_writer.AmqpWriter)
    writer._amqp, writer._confirms = connection, confirms
    message = Message()
    with pytest.raises(ValueError, match="cannot be encoded"):
        list(writer.write([message, None]))
    assert message.sent
    assert confirms.appended == [message]
    assert connection.flushes == 1
