"""Content types, serializers and compression of Celery messages."""

from __future__ import annotations

import dataclasses
import pickle
import uuid
import zlib
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import kombu
import pytest
from kombu import compression

from wbengine import exceptions
from wbengine.interop.celery import _serializers
from wbengine.interop.celery._serializers import Accepted, Refused, Undecodable, Wire


def load(accepted: Accepted, body: bytes, kind: str | None, encoding: str | None) -> Any:
    return accepted.read(Wire({}, {}, kind, encoding, body))


class Trap:
    """Call `spring` when it is unpickled."""

    sprung = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return spring, ()


def spring() -> None:
    Trap.sprung += 1


def test_default_accepts_json_only() -> None:
    accepted = Accepted()
    assert accepted.names == ("json",)
    assert load(accepted, b'{"a": [1]}', "application/json", "utf-8") == {"a": [1]}


def test_unaccepted_content_type_is_refused_before_decoding() -> None:
    data = pickle.dumps(Trap())
    for accepted in (Accepted(), Accepted(("json", "yaml", "msgpack"))):
        for kind in ("application/x-python-serialize", "Application/X-Python-Serialize "):
            with pytest.raises(Refused, match=r"application/x-python-serialize.*accepted: json"):
                load(accepted, data, kind, "binary")
    assert Trap.sprung == 0
    with pytest.raises(Refused, match="application/x-unheard-of"):
        load(Accepted(), b"", "application/x-unheard-of", None)


def test_accepting_pickle_warns_that_it_can_run_code() -> None:
    with pytest.warns(UserWarning, match="can run code"):
        accepted = Accepted(("pickle", "json"))
    value = {"a": {1, 2}}
    assert load(accepted, *reversed_dump(value, "pickle")) == value


def reversed_dump(value: Any, name: str) -> tuple[bytes, str, str]:
    kind, encoding, body = _serializers.dump(value, name)
    return body, kind, encoding


@pytest.mark.parametrize("name", ["json", "yaml", "msgpack"])
def test_value_survives_encoding_and_decoding(name: str) -> None:
    value = {"a": [1, -2.5, None, True, "ü\n"], "b": {}, "": []}
    assert load(Accepted(name), *reversed_dump(value, name)) == value


def test_json_body_keeps_dates_decimals_uuids_and_bytes() -> None:
    value = [
        datetime(2020, 1, 1, tzinfo=UTC), date(2020, 1, 1), Decimal("1.10"),
        uuid.UUID(int=7), b"\xff", b"text",
    ]  # fmt: skip
    assert load(Accepted(), *reversed_dump(value, "json")) == value


def test_yaml_with_object_tag_is_undecodable() -> None:
    accepted = Accepted("yaml")
    for text in (b"!!python/object/apply:os.getpid []", b"!!python/name:os.getpid", b"!x 1"):
        with pytest.raises(Undecodable):
            load(accepted, text, "application/x-yaml", "utf-8")


def test_raw_body_is_read_without_an_accepted_serializer() -> None:
    accepted = Accepted(())
    assert load(accepted, b"\xff\x00", "application/data", "binary") == b"\xff\x00"
    assert load(accepted, b"\xff\x00", None, None) == b"\xff\x00"
    assert load(accepted, b"", "text/plain", "utf-8") == ""
    assert load(accepted, "ü".encode(), "text/plain", "utf-8") == "ü"
    assert load(accepted, "ü".encode("latin-1"), "application/text", "ISO_8859-1") == "ü"
    with pytest.raises(Undecodable, match="must be 'utf-8'"):
        load(accepted, b"\xff", "text/plain", "utf-8")


@pytest.mark.parametrize("encoding", ["zlib", "hex", "rot13", "x" * 999])
def test_raw_text_with_non_text_encoding_is_refused(encoding: str) -> None:
    with pytest.raises(Undecodable, match="raw body") as raised:
        load(Accepted(), b"x", "text/plain", encoding)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["jsn"], "got 'jsn' (did you mean 'json'?)"),
        (["application/x-yml"], "did you mean 'application/x-yaml'?"),
        ("json,yaml", "The serializer must be one of"),
    ],
)
def test_unknown_serializer_name_is_refused_with_hint(names: Any, words: str) -> None:
    with pytest.raises(ValueError) as raised:
        Accepted(names)
    assert words in str(raised.value) and "pickle" in str(raised.value)


def test_content_type_is_accepted_as_serializer_name() -> None:
    accepted = Accepted(["application/x-msgpack", "json", "msgpack"])
    assert accepted.names == ("msgpack", "json")
    assert "msgpack" in repr(accepted)


def test_unserializable_value_raises_not_encodable() -> None:
    for name in _serializers.MIME_TYPES:
        with pytest.raises(exceptions.NotEncodable, match=f"as {name}") as raised:
            _serializers.dump({"a": lambda: None}, name)
        assert raised.value.type_name == "dict"
    with pytest.raises(ValueError, match="did you mean 'json'"):
        _serializers.dump(1, "jsno")
    tree: Any = []
    for _ in range(100_000):
        tree = [tree]
    with pytest.raises(exceptions.NotEncodable):
        _serializers.dump(tree)


# Messages of brokers. -----------------------------------------------------------------------------


@pytest.fixture
def connection() -> Iterator[kombu.Connection]:
    with kombu.Connection("memory://") as connection:
        yield connection


QUEUE = kombu.Queue("wire", kombu.Exchange("wire"), "wire")


def passed(connection: kombu.Connection, **publish: Any) -> Any:
    """Publish a message and return it as received."""
    channel = connection.channel()
    queue = QUEUE(channel)
    queue.declare()
    queue.purge()
    kombu.Producer(channel).publish(exchange="wire", routing_key="wire", **publish)
    return queue.get()


def test_published_message_is_received_unchanged(connection: kombu.Connection) -> None:
    sent = Wire(
        {"task": "a", "n": [1, None]},
        {"correlation_id": "1", "reply_to": "r", "priority": 3, "type": "t"},
        "application/json",
        "utf-8",
        b"[[], {}, null]",
    )
    message = passed(connection, body=sent.body, **sent.arguments())
    received = Wire.of(message)
    names = sent.properties
    assert {name: received.properties[name] for name in names} == names
    assert dataclasses.replace(received, properties=names) == sent


@pytest.mark.parametrize("name", ["gzip", "bzip2", "lzma"])
def test_compressed_body_is_compatible_with_kombu(connection: kombu.Connection, name: str) -> None:
    plain = Wire({"task": "a"}, {}, "application/json", "utf-8", b'{"a": "%s"}' % (b"x" * 200))
    packed = plain.packed(name)
    assert len(packed.body) < 150 and packed.unpacked() == plain.body
    received = Wire.of(passed(connection, body=packed.body, **packed.arguments()))
    assert received.headers == {"task": "a"} and received.unpacked() == plain.body
    theirs, kind = compression.compress(plain.body, name)
    assert Wire({"compression": kind}, body=theirs).unpacked() == plain.body


def test_body_that_kombu_cannot_decompress_is_undecodable() -> None:
    failed = kombu.Message(body=b"plain", headers={"compression": "gzip"})
    assert failed.errors
    with pytest.raises(Undecodable, match="gzip"):
        Wire.of(failed).unpacked()


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("gzip", b"", "is incomplete"),
        ("gzip", zlib.compress(b"x" * 99)[:-1], "is incomplete"),
        ("gzip", zlib.compress(b"x") + b"y", "has more than"),
        ("gzip", b"xyz", "must be 'gzip' data"),
        ("snappy", b"x", "unknown compression"),
        ("brotli", b"x", "unknown compression"),
        (7, b"x", "unknown compression"),
        ("x" * 1000, b"x", "unknown compression"),
    ],
)
def test_invalid_compressed_body_is_undecodable(name: Any, body: bytes, words: str) -> None:
    with pytest.raises(Undecodable, match=words) as raised:
        Wire({"compression": name}, body=body).unpacked()
    assert len(str(raised.value)) < 300


def test_body_above_size_limit_is_refused() -> None:
    assert Wire(body=b"x" * 10).unpacked(10) == b"x" * 10
    packed = Wire({"compression": "gzip"}, body=zlib.compress(b"x" * 10))
    assert packed.unpacked(10) == b"x" * 10
    for large in (Wire(body=b"x" * 10), packed):
        with pytest.raises(exceptions.TooLarge, match="larger than 9 bytes"):
            large.unpacked(9)
