"""Messages as kombu hands them over, and takes them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import kombu
import pytest

from wbengine import exceptions
from wbengine.engines.worker_based import protocol
from wbengine.engines.worker_based.messages import envelope
from wbengine.interop.celery.protocol import wire
from wbengine.interop.celery.protocol.wire import Undecodable, Wire


@pytest.fixture
def connection() -> Iterator[kombu.Connection]:
    with kombu.Connection("memory://") as connection:
        yield connection


QUEUE = kombu.Queue("wire", kombu.Exchange("wire"), "wire")


def passed(connection: kombu.Connection, packed: bool = True, **publish: Any) -> Any:
    """What comes out at the other end."""
    channel = connection.channel()
    if packed:
        wire.keep_packed(channel)
        wire.keep_packed(channel)  # once more does no harm
    queue = QUEUE(channel)
    queue.declare()
    queue.purge()
    kombu.Producer(channel).publish(exchange="wire", routing_key="wire", **publish)
    return queue.get()


def test_a_message_goes_out_and_comes_in_as_it_is(connection: kombu.Connection) -> None:
    sent = Wire(
        {"task": "a", "n": [1, None]},
        {"correlation_id": "1", "reply_to": "r", "priority": 3, "expiration": "1500", "type": "t"},
        "application/json",
        "utf-8",
        b"[[], {}, null]",
    )
    message = passed(connection, body=sent.body, **sent.arguments())
    found = Wire.of(message)
    assert found.properties.pop("delivery_mode") == 2
    assert found == sent
    assert found.arguments()["expiration"] == 1.5


def test_what_is_the_transports_stays_there(connection: kombu.Connection) -> None:
    found = Wire.of(passed(connection, body=b"x", content_type="a/b", content_encoding="binary"))
    assert set(found.properties) == {"priority", "delivery_mode"}
    assert found.unpacked() == b"x"


@pytest.mark.parametrize("name", ["gzip", "bzip2", "xz"])
@pytest.mark.parametrize("packed", [True, False])
def test_a_compressed_body(connection: kombu.Connection, name: str, packed: bool) -> None:
    """Whether kombu unpacked it already or not."""
    message = passed(connection, packed, body={"a": "ü" * 100}, serializer="json", compression=name)
    found = Wire.of(message)
    assert (len(found.body) < 100) == packed == ("compression" in found.headers)
    assert found.unpacked() == b'{"a": "' + b"\\u00fc" * 100 + b'"}'
    again = Wire.of(passed(connection, body=found.body, **found.arguments()))
    assert again.unpacked() == found.unpacked()


def test_a_compressed_message_that_is_put_back_stays_readable(connection: kombu.Connection) -> None:
    message = passed(connection, body=b"x" * 100, compression="gzip", content_type="a/b")
    message.requeue()
    found = Wire.of(QUEUE(message.channel).get())
    assert found.unpacked() == b"x" * 100


def test_what_kombu_could_not_unpack_is_not_taken_for_unpacked(
    connection: kombu.Connection,
) -> None:
    headers = {"compression": "gzip"}
    taken = passed(connection, body=b"plain", headers=headers, content_type="a/b")
    failed = kombu.Message(body=b"plain", headers=headers)
    assert failed.errors and not taken.errors
    for message in (taken, failed):
        with pytest.raises(Undecodable, match="gzip"):
            Wire.of(message).unpacked()


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("gzip", b"", "cut short"),
        ("gzip", zlib.compress(b"x" * 99)[:-1], "cut short"),
        ("gzip", zlib.compress(b"x") + b"y", "more than"),
        ("gzip", b"xyz", "not 'gzip' data"),
        ("snappy", b"x", "not known"),
        ("brotli", b"x", "not known"),
        (7, b"x", "not known"),
        ("x" * 1000, b"x", "not known"),
    ],
)
def test_what_cannot_be_unpacked(name: Any, body: bytes, words: str) -> None:
    with pytest.raises(Undecodable, match=words) as raised:
        Wire({"compression": name}, body=body).unpacked()
    assert len(str(raised.value)) < 300


def test_size_is_bounded() -> None:
    assert Wire(body=b"x" * 10).unpacked(10) == b"x" * 10
    packed = Wire({"compression": "gzip"}, body=zlib.compress(b"x" * 10))
    assert packed.unpacked(10) == b"x" * 10
    for large in (Wire(body=b"x" * 10), packed):
        with pytest.raises(exceptions.TooLarge, match="more than 9 bytes"):
            large.unpacked(9)


class Odd:
    """A message of a transport that gives something else."""

    headers = properties = None
    errors: tuple[()] = ()
    content_type = b"application/json"
    content_encoding = 7

    def __init__(self, body: Any) -> None:
        self.body = body


@pytest.mark.parametrize(
    ("body", "found"),
    [("ü\ud800", b"\xc3\xbc\xed\xa0\x80"), (memoryview(b"x"), b"x"), (bytearray(b"x"), b"x"),
     (None, b""), (7, b"")],
)  # fmt: skip
def test_any_message_has_a_wire(body: Any, found: bytes) -> None:
    assert Wire.of(Odd(body)) == Wire({}, {}, "application/json", None, found)


def test_expiration_that_is_no_number_is_not_sent() -> None:
    assert "expiration" not in Wire(properties={"expiration": "soon"}).arguments()


def test_ours_are_told_from_celerys() -> None:
    """Both may carry a header `task`."""
    assert wire.is_celery({"task": "a"}, {})
    assert wire.is_celery({}, {})
    assert wire.is_celery({"task": "a"}, {"type": ["REQUEST"]})
    assert not wire.is_celery({"task": "a", envelope.WBE_VERSION: "1"}, {})
    for kind in (protocol.REQUEST, protocol.NOTIFY, protocol.RESPONSE):
        assert not wire.is_celery({"task": "a"}, {"type": kind})
