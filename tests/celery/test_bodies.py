"""Which content types are read, and how."""

from __future__ import annotations

import dataclasses
import pickle
import uuid
import zlib
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import kombu
import pytest
from kombu import compression

from wbengine import exceptions
from wbengine.interop.celery import serializers
from wbengine.interop.celery.serializers import Accepted, Refused, Undecodable, Wire


def load(accepted: Accepted, body: bytes, kind: str | None, encoding: str | None) -> Any:
    return accepted.read(Wire({}, {}, kind, encoding, body))


class Trap:
    """Does what it should not when it is unpickled."""

    sprung = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return spring, ()


def spring() -> None:
    Trap.sprung += 1


def test_json_alone_by_default() -> None:
    accepted = Accepted()
    assert accepted.names == ("json",)
    assert load(accepted, b'{"a": [1]}', "application/json", "utf-8") == {"a": [1]}


def test_what_is_not_accepted_is_refused_before_it_is_decoded() -> None:
    data = pickle.dumps(Trap())
    for accepted in (Accepted(), Accepted(("json", "yaml", "msgpack"))):
        for kind in ("application/x-python-serialize", "Application/X-Python-Serialize "):
            with pytest.raises(Refused, match=r"application/x-python-serialize.*but json"):
                load(accepted, data, kind, "binary")
    assert Trap.sprung == 0
    with pytest.raises(Refused, match="application/x-unheard-of"):
        load(Accepted(), b"", "application/x-unheard-of", None)


def test_pickle_warns_of_what_it_allows() -> None:
    with pytest.warns(UserWarning, match="can run any code"):
        accepted = Accepted(("pickle", "json"))
    value = {"a": {1, 2}}
    assert load(accepted, *reversed_dump(value, "pickle")) == value


def reversed_dump(value: Any, name: str) -> tuple[bytes, str, str]:
    kind, encoding, body = serializers.dump(value, name)
    return body, kind, encoding


@pytest.mark.parametrize("name", ["json", "yaml", "msgpack"])
def test_round_trips(name: str) -> None:
    value = {"a": [1, -2.5, None, True, "ü\n"], "b": {}, "": []}
    assert load(Accepted(name), *reversed_dump(value, name)) == value


def test_json_carries_what_kombu_does() -> None:
    value = [
        datetime(2020, 1, 1, tzinfo=timezone.utc), date(2020, 1, 1), Decimal("1.10"),
        uuid.UUID(int=7), b"\xff", b"text",
    ]  # fmt: skip
    assert load(Accepted(), *reversed_dump(value, "json")) == value


def test_yaml_makes_no_objects() -> None:
    accepted = Accepted("yaml")
    for text in (b"!!python/object/apply:os.getpid []", b"!!python/name:os.getpid", b"!x 1"):
        with pytest.raises(Undecodable):
            load(accepted, text, "application/x-yaml", "utf-8")


def test_raw_bodies_are_always_read_as_they_are() -> None:
    accepted = Accepted(())
    assert load(accepted, b"\xff\x00", "application/data", "binary") == b"\xff\x00"
    assert load(accepted, b"\xff\x00", None, None) == b"\xff\x00"
    assert load(accepted, b"", "text/plain", "utf-8") == ""
    assert load(accepted, "ü".encode(), "text/plain", "utf-8") == "ü"
    assert load(accepted, "ü".encode("latin-1"), "application/text", "ISO_8859-1") == "ü"
    with pytest.raises(Undecodable, match="not 'utf-8'"):
        load(accepted, b"\xff", "text/plain", "utf-8")


@pytest.mark.parametrize("encoding", ["zlib", "hex", "rot13", "x" * 999])
def test_encodings_that_are_not_of_texts_are_refused(encoding: str) -> None:
    with pytest.raises(Undecodable, match="raw body") as raised:
        load(Accepted(), b"x", "text/plain", encoding)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["jsn"], "'jsn' is no serializer (did you mean 'json'?)"),
        (["application/x-yml"], "did you mean 'application/x-yaml'?"),
        ("json,yaml", "no serializer"),
    ],
)
def test_unknown_names(names: Any, words: str) -> None:
    with pytest.raises(ValueError) as raised:
        Accepted(names)
    assert words in str(raised.value) and "pickle" in str(raised.value)


def test_names_may_be_content_types_and_come_once() -> None:
    accepted = Accepted(["application/x-msgpack", "json", "msgpack"])
    assert accepted.names == ("msgpack", "json")
    assert "msgpack" in repr(accepted)


def test_what_cannot_be_written() -> None:
    for name in serializers.MIME_TYPES:
        with pytest.raises(exceptions.NotEncodable, match=f"as {name}") as raised:
            serializers.dump({"a": lambda: None}, name)
        assert raised.value.type_name == "dict"
    with pytest.raises(ValueError, match="did you mean 'json'"):
        serializers.dump(1, "jsno")
    tree: Any = []
    for _ in range(100_000):
        tree = [tree]
    with pytest.raises(exceptions.NotEncodable):
        serializers.dump(tree)


# Messages of brokers. -----------------------------------------------------------------------------


@pytest.fixture
def connection() -> Iterator[kombu.Connection]:
    with kombu.Connection("memory://") as connection:
        yield connection


QUEUE = kombu.Queue("wire", kombu.Exchange("wire"), "wire")


def passed(connection: kombu.Connection, **publish: Any) -> Any:
    """What comes out at the other end."""
    channel = connection.channel()
    queue = QUEUE(channel)
    queue.declare()
    queue.purge()
    kombu.Producer(channel).publish(exchange="wire", routing_key="wire", **publish)
    return queue.get()


def test_a_message_goes_out_and_comes_in_as_it_is(connection: kombu.Connection) -> None:
    sent = Wire(
        {"task": "a", "n": [1, None]},
        {"correlation_id": "1", "reply_to": "r", "priority": 3, "type": "t"},
        "application/json",
        "utf-8",
        b"[[], {}, null]",
    )
    message = passed(connection, body=sent.body, **sent.arguments())
    found = Wire.of(message)
    names = sent.properties
    assert {name: found.properties[name] for name in names} == names
    assert dataclasses.replace(found, properties=names) == sent


@pytest.mark.parametrize("name", ["gzip", "bzip2", "lzma"])
def test_a_compressed_body(connection: kombu.Connection, name: str) -> None:
    """What we pack kombu unpacks, and what it packs is unpacked here."""
    plain = Wire({"task": "a"}, {}, "application/json", "utf-8", b'{"a": "%s"}' % (b"x" * 200))
    packed = plain.packed(name)
    assert len(packed.body) < 150 and packed.unpacked() == plain.body
    found = Wire.of(passed(connection, body=packed.body, **packed.arguments()))
    assert found.headers == {"task": "a"} and found.unpacked() == plain.body
    theirs, kind = compression.compress(plain.body, name)
    assert Wire({"compression": kind}, body=theirs).unpacked() == plain.body


def test_a_body_that_kombu_could_not_unpack_stays_packed() -> None:
    failed = kombu.Message(body=b"plain", headers={"compression": "gzip"})
    assert failed.errors
    with pytest.raises(Undecodable, match="gzip"):
        Wire.of(failed).unpacked()


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
