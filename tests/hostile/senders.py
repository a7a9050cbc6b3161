"""Senders that put messages into queues of each transport without validation."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import amqp
from amqp.exceptions import FrameSyntaxError

from tests.hostile.inputs import Input
from tests.seams.transports import OwnConnection, put_raw
from tests.support import brokers
from wbengine import transports

KINDS = ("redis", "amqp", "postgresql", "mysql", "filesystem", "memory")


class Sender(Protocol):
    """A sender. `raw`: whether it accepts arbitrary bytes."""

    url: str
    raw: bool

    def send(self, queue: str, given: Input) -> bool:
        """Put a message into a queue. Return False if the transport cannot encode it."""


class Ours:
    """Puts arbitrary bytes into the store of a wbengine broker."""

    raw = True

    def __init__(self, url: str, connection: OwnConnection) -> None:
        self.url = url
        self._connection = connection

    def send(self, queue: str, given: Input) -> bool:
        data = given.raw
        if data is None:
            head = {
                "v": 1,
                "exchange": "default",
                "routing_key": queue,
                "content-type": given.properties.get("content_type"),
                "content-encoding": given.properties.get("content_encoding"),
                "properties": given.properties,
                "headers": given.headers,
                "size": len(given.body),
            }
            data = json.dumps(head).encode() + b"\n" + given.body
        assert put_raw(self._connection, queue, data), f"there is no queue {queue}"
        return True


class Rabbitmq:
    raw = False

    def __init__(self, url: str, channel: Any) -> None:
        self.url = url
        self._channel = channel

    def send(self, queue: str, given: Input) -> bool:
        message = amqp.Message(given.body, application_headers=given.headers, **given.properties)
        try:
            if len(message._serialize_properties()) > 100_000:
                return False  # too large for the frame
        # AMQP cannot encode it
        except (amqp.AMQPError, FrameSyntaxError, struct.error, ValueError):
            return False
        self._channel.basic_publish_confirm(message, routing_key=queue, mandatory=True)
        return True


@contextlib.contextmanager
def sender(kind: str, folder: Path, where: str | None = None) -> Iterator[Sender]:
    """Yield a sender for a private broker, or for the broker at the URL `where`."""
    servers = {
        "redis": brokers.redis, "amqp": brokers.rabbitmq, "postgresql": brokers.postgresql,
        "mysql": brokers.mysql,
    }  # fmt: skip
    if kind in servers and where is None:
        with (
            servers[kind]() as server,
            server.place() as place,
            sender(kind, folder, place) as inner,
        ):
            yield inner
        return
    url = where or (
        f"filesystem://{folder / 'broker'}" if kind == "filesystem" else "memory://hostile"
    )
    target = transports.resolve(url, exchange="default")
    if kind == "amqp":
        with target.connect() as connection:
            yield Rabbitmq(url, connection.channel())
    else:
        with OwnConnection(target) as own:
            yield Ours(url, own)
