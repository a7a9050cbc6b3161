"""Malformed and hostile messages are read in bounded time or raise `InvalidFormat`."""

from __future__ import annotations

import bz2
import functools
import json
import lzma
import random
import time
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.celery import random_messages
from tests.celery.apps import ours
from tests.support.amounts import amount
from wbengine import exceptions
from wbengine.interop.celery import _protocol as codec
from wbengine.interop.celery import _results, _serializers
from wbengine.interop.celery._protocol import Malformed
from wbengine.interop.celery._serializers import Wire

COUNT = amount(2_000, 10_000)
ACCEPTED = _serializers.Accepted(("json", "msgpack", "yaml"))

ODD: list[Any] = [
    None, True, -1, 0, 2**63, 10**400, 1e999, float("nan"), "", "x", "\ud800", "x" * 2_000, b"\xff",
    [], {}, [[]], {"task": 3}, [None, None], [1, "2"], [-1, -2], {1: 2}, "9999-99-99T99:99:99",
    "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-12:00", "2020-W99-9", {"options": 3},
    {"task": "a", "options": {"link": {"task": {}}, "chain": [3]}}, [{"task": "a", "args": 3}],
    {"task": "celery.chain", "subtask_type": "chain", "kwargs": {"tasks": [{"task": "a"}, 7]}},
    {"task": "celery.chord", "subtask_type": "chord", "kwargs": {"header": 3, "body": {}}},
    {"task": "celery.group", "subtask_type": "group", "kwargs": {"tasks": {"task": "a"}}},
    {"__type__": "uuid", "__value__": 3}, {"__type__": "no", "__value__": {}}, object(),
]  # fmt: skip


ODD_JSON = [one for one in ODD if type(one) not in (bytes, object)]


def deep(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def bomb(name: str, size: int) -> bytes:
    """Return compressed zero bytes of this uncompressed size."""
    make: Any = {
        "gzip": zlib.compressobj, "bzip2": bz2.BZ2Compressor, "xz": lzma.LZMACompressor,
    }[name]()  # fmt: skip
    blank = bytes(1 << 20)
    return b"".join(make.compress(blank) for _ in range(size >> 20)) + bytes(make.flush())


class Draft:
    """A mutable copy of a wire message."""

    def __init__(self, wire: Wire) -> None:
        self.headers, self.properties = dict(wire.headers), dict(wire.properties)
        self.content_type, self.content_encoding = wire.content_type, wire.content_encoding
        self.body = wire.body

    def wire(self) -> Wire:
        return Wire(**vars(self))


def flipped(rng: random.Random, wire: Draft) -> None:
    body = bytearray(wire.body)
    for _ in range(rng.randrange(1, 4)):
        if body:
            body[rng.randrange(len(body))] = rng.randrange(256)
    wire.body = bytes(body)


def cut(rng: random.Random, wire: Draft) -> None:
    at = rng.randrange(len(wire.body) + 1)
    wire.body = rng.choice((wire.body[:at], wire.body[at:], wire.body + wire.body[:at]))


def header(rng: random.Random, wire: Draft) -> None:
    name = rng.choice([*wire.headers, "task", "id", "stamps", "eta", "compression", "x"])
    wire.headers[name] = rng.choice(ODD)


def dropped(rng: random.Random, wire: Draft) -> None:
    wire.headers.pop(rng.choice([*wire.headers, "task"]), None)


def prop(rng: random.Random, wire: Draft) -> None:
    wire.properties[rng.choice(("correlation_id", "reply_to", "priority"))] = rng.choice(ODD)


def body(rng: random.Random, wire: Draft) -> None:
    """Replace a random part of the JSON body."""
    try:
        data = json.loads(wire.body)
    except ValueError:
        return
    place = data
    while isinstance(place, dict | list) and place:
        key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
        if rng.random() < 0.3 or not isinstance(place[key], dict | list):
            place[key] = rng.choice(ODD_JSON)
            break
        place = place[key]
    wire.body = json.dumps(data).encode()


def typed(rng: random.Random, wire: Draft) -> None:
    types = (
        *_serializers.MIME_TYPES.values(),
        *_serializers.RAW,
        None,
        "",
        "x/y",
        "APPLICATION/JSON",
    )
    wire.content_type = rng.choice(types)
    codecs = ["utf-8", "binary", "zlib", "hex", "idna", "utf-7", "utf-16", "punycode"]
    wire.content_encoding = rng.choice((*codecs, "", None, "x" * 300))


def packed(rng: random.Random, wire: Draft) -> None:
    name, make = rng.choice(
        (("gzip", zlib.compress), ("bzip2", bz2.compress), ("application/x-lzma", lzma.compress))
    )
    data = bytearray(make(wire.body))
    if rng.random() < 0.5:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    wire.headers["compression"], wire.body = name, bytes(data)


MUTATIONS: list[Callable[[random.Random, Draft], None]] = [
    flipped, flipped, cut, header, header, dropped, prop, body, body, typed, packed,
]  # fmt: skip


def wires(seed: int) -> Draft:
    """Return a random message in a random serializer."""
    return Draft(made_up(seed))


@functools.cache
def made_up(seed: int) -> Wire:
    rng = random.Random(seed)
    protocol = rng.choice((1, 2, 2))
    message = ours(random_messages.message(rng, protocol), protocol)
    # YAML is rare because decoding it takes 100 times longer, in a third-party library.
    [name] = rng.choices(("json", "msgpack", "yaml"), (75, 24, 1))
    try:
        return codec.encode(message, serializer=name)
    except exceptions.NotEncodable:  # msgpack integers have at most 64 bits
        return codec.encode(message, serializer="json")


def consume(wire: Wire) -> str:
    """Process a message like a worker and return "read" or the name of the error."""
    try:
        message = codec.decode(wire, ACCEPTED)
    except exceptions.InvalidFormat as error:
        assert len(str(error)) < 600
        return type(error).__name__
    calls: list[Callable[[], object]] = [
        lambda: codec.encode(message, serializer="json"),
        lambda: codec.encode(message, 1, "json"),
    ]
    for call in calls:
        try:
            call()
        except exceptions.InvalidFormat as error:
            assert len(str(error)) < 600
    return "read"


def read_result(wire: Wire) -> str:
    """Decode a result and return "read" or the name of the error."""
    try:
        _results.failure_of(codec.decode_result(wire, ACCEPTED))
    except exceptions.InvalidFormat as error:
        assert len(str(error)) < 600
        return type(error).__name__
    return "read"


def test_mutated_results_are_read_or_refused() -> None:
    counts: Counter[str] = Counter()
    error = {"exc_type": "KeyError", "exc_message": ["why", 7], "exc_module": "builtins"}
    made = [
        codec.Result("id", "FAILURE", error, "text", group_id="g", name="a", args=[1], retries=3),
        codec.Result("id", "SUCCESS", [1, {"k": "v"}], children=[(("c", None), None)]),
    ]
    for seed in range(COUNT):
        rng = random.Random(seed)
        kind = rng.choices(("json", "msgpack", "yaml"), (70, 29, 1))[0]
        wire = Draft(codec.encode_result(rng.choice(made), kind))
        rng.choice((flipped, cut, body, body, body, typed, packed))(rng, wire)
        counts[read_result(wire.wire())] += 1
    assert {"read", "Malformed", "Undecodable", "Refused"} <= set(counts), counts
    assert counts["read"] > COUNT / 20, counts


def test_mutated_messages_are_read_or_refused() -> None:
    counts: Counter[str] = Counter()
    slowest = 0.0
    for seed in range(COUNT):
        rng = random.Random(seed)
        wire = wires(seed % 500)
        for _ in range(rng.choice((1, 1, 2, 3))):
            rng.choice(MUTATIONS)(rng, wire)
        start = time.thread_time()
        counts[consume(wire.wire())] += 1
        slowest = max(slowest, time.thread_time() - start)
    assert slowest < 1.0
    # All kinds of errors occur, and some messages stay valid.
    assert {"read", "Malformed", "Undecodable", "Refused"} <= set(counts), counts
    assert counts["read"] > COUNT / 20, counts


@pytest.mark.parametrize("name", ["gzip", "bzip2", "xz"])
def test_decompression_stops_at_size_limit(name: str) -> None:
    wire = Wire({"compression": name}, body=bomb(name, 32 << 20))
    assert len(wire.body) < 50_000
    assert len(wire.unpacked(32 << 20)) == 32 << 20
    tracemalloc.start()
    with pytest.raises(exceptions.TooLarge, match="1048576"):
        wire.unpacked(1 << 20)
    assert tracemalloc.get_traced_memory()[1] < 12 << 20  # xz has windows of 8 MiB
    tracemalloc.stop()


def test_message_that_decompresses_above_limit_is_refused() -> None:
    wire = wires(1)
    wire.headers["compression"], wire.body = "gzip", bomb("gzip", 65 << 20)
    with pytest.raises(exceptions.TooLarge, match="67108864"):
        codec.decode(wire.wire(), ACCEPTED)


def test_body_of_unaccepted_content_type_is_not_decompressed() -> None:
    wire = wires(1)
    wire.headers["compression"], wire.content_type = "gzip", "application/x-python-serialize"
    wire.body = b"no gzip, and no pickle"
    with pytest.raises(_serializers.Refused):
        codec.decode(wire.wire(), ACCEPTED)


@pytest.mark.parametrize(
    ("kind", "text", "error"),
    [
        ("application/json", deep(100_000), exceptions.InvalidFormat),
        ("application/json", b"[[" + b"9" * 100_000 + b"], {}, null]", exceptions.InvalidFormat),
        ("application/x-yaml", deep(5_000), exceptions.InvalidFormat),
        ("application/x-yaml", b"!!python/object/apply:os.system [x]", _serializers.Undecodable),
        ("application/x-msgpack", b"\x91" * 100_000, _serializers.Undecodable),
        ("application/x-msgpack", b"\xdd\xff\xff\xff\xff", _serializers.Undecodable),
        ("application/json", b"", _serializers.Undecodable),
        ("application/json", b"\xff\xfe", _serializers.Undecodable),
        ("application/json", b"[1, 2]", Malformed),
        ("application/json", b'"args"', Malformed),
        ("application/json", b"7", Malformed),
        ("application/json", b"[[], [], {}]", Malformed),
        ("application/json", b"[[], {}, []]", Malformed),
    ],
)
def test_malformed_body_is_refused_quickly(kind: str, text: bytes, error: type[Exception]) -> None:
    wire = Wire({"task": "a", "id": "1"}, {}, kind, "utf-8", text)
    start = time.thread_time()
    with pytest.raises(error):
        codec.decode(wire, ACCEPTED)
    assert time.thread_time() - start < 5


@given(
    st.dictionaries(st.text(), st.text() | st.integers() | st.none() | st.binary()),
    st.sampled_from([*_serializers.MIME_TYPES.values(), "text/plain", None]),
    st.binary(),
)
def test_random_message_is_read_or_refused(
    headers: dict[str, Any], kind: str | None, data: bytes
) -> None:
    consume(Wire(headers, {}, kind, "utf-8", data))
    consume(Wire({"task": "a", "id": "1", **headers}, {}, kind, "utf-8", data))
