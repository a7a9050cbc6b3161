"""Channels of kombu's transports that neither decompress nor decode messages."""

from __future__ import annotations

import bz2
from typing import Any

import kombu
import pytest

from tests.support.brokers import Place
from wbengine import exceptions
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.transports._kombu import safe_message

#: Expands to one megabyte.
BOMB = bz2.compress(b'{"a": 1}' + b" " * 1_000_000)


@pytest.fixture(params=["memory", "amqp"])
def connection(request: pytest.FixtureRequest) -> kombu.Connection:
    url = "memory://" if request.param == "memory" else request.getfixturevalue("rabbitmq_url")
    return kombu.Connection(url)


def _sent(connection: kombu.Connection, body: bytes, **more: object) -> kombu.Message:
    """Publish a message and return it as received."""
    with connection:
        channel = safe_message.channel_of(connection)
        queue = kombu.Queue("wary", kombu.Exchange(""), routing_key="wary")(channel)
        queue.declare()
        kombu.Producer(channel).publish(body, routing_key="wary", **more)
        found = queue.get(no_ack=True)
    assert isinstance(found, safe_message.Message)
    return found


@pytest.mark.parametrize("how", ["bzip2", "application/x-gzip", "no such"])
def test_compressed_message_is_not_expanded_and_is_rejected(
    connection: kombu.Connection, how: str
) -> None:
    found = _sent(connection, BOMB, headers={"compression": how, "a": 1}, content_encoding="binary")
    assert found.compressed and not found.errors
    assert bytes(found.body) == BOMB
    assert found.headers == {"a": 1}
    with pytest.raises(exceptions.InvalidFormat, match="compressed"):
        env.body_of(found)


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        ("\ud800", None), ([1], None), ({"a": 1}, None), (5, None), (None, None),
        ("a", "base64"), (5, "base64"), ("a", "unknown"), ("a", [1]),
    ],
)  # fmt: skip
def test_message_with_invalid_body_is_received_and_is_rejected(body: Any, encoding: Any) -> None:
    """Otherwise kombu raises an error and delivers the message again, endlessly."""
    received: list[Any] = []
    properties = {
        "delivery_tag": "1",
        "delivery_info": {"exchange": "", "routing_key": "wary"},
        "body_encoding": encoding,
    }
    with kombu.Connection("memory://") as connection:
        channel = safe_message.channel_of(connection)
        queue = kombu.Queue("wary", kombu.Exchange(""), routing_key="wary")(channel)
        queue.declare()
        channel._put("wary", {"body": body, "headers": {}, "properties": properties})
        kombu.Consumer(channel, [queue], on_message=received.append).consume()
        connection.drain_events(timeout=5)
        received[0].ack()
    with pytest.raises(exceptions.InvalidFormat):
        env.body_of(received[0])


def test_uncompressed_message_is_read_normally(connection: kombu.Connection) -> None:
    found = _sent(connection, b'{"a": 1}', headers={"a": 1}, content_encoding="utf-8")
    assert not found.compressed
    assert found.headers == {"a": 1}
    assert env.body_of(found) == {"a": 1}


def test_content_encoding_of_a_message_is_ignored(rabbitmq_url: Place) -> None:
    body = '{"a": 1}'.encode("utf-16")
    found = _sent(kombu.Connection(rabbitmq_url), body, content_encoding="utf-16")
    assert found.body == body
    with pytest.raises(exceptions.InvalidFormat, match="UTF-8"):
        env.body_of(found)
