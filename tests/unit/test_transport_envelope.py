"""Encoding of messages with their headers, with and without orjson."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.values import same
from wbengine import exceptions as exc
from wbengine._text import json_text
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.transports import _broker, _encoding

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
HEADERS = st.dictionaries(
    TEXT | st.sampled_from(["wbe-ledger", "wbe-epoch"]),
    TEXT | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.lists(TEXT),
    max_size=4,
)
SENT = st.builds(
    env.Envelope,
    type=TEXT,
    body=st.dictionaries(TEXT, st.integers() | TEXT | st.none(), max_size=3),
    routing_key=TEXT,
    correlation_id=TEXT | st.none(),
    reply_to=TEXT | st.none(),
    headers=HEADERS,
    priority=st.integers(0, 9),
)


def read(data: bytes) -> _broker.Delivery:
    delivery = _broker.Delivery("q", None, data, redelivered=True)
    delivery.parse()
    return delivery


@given(SENT, TEXT)
def test_sealed_message_is_read_with_the_same_content(sent: env.Envelope, exchange: str) -> None:
    found = read(_encoding.seal(sent, exchange))
    assert same(found.headers, sent.headers) and found.body == sent.encoded
    for name in ("type", "correlation_id", "reply_to"):
        assert found.properties[name] == getattr(sent, name)
    assert found.delivery_info["routing_key"] == sent.routing_key
    assert found.delivery_info["redelivered"] is True
    assert found.delivery_info["exchange"] == exchange
    assert found.properties["priority"] == sent.priority


@pytest.mark.parametrize(
    "headers",
    [{"x": float("nan")}, {"x": float("inf")}, {"x": "\ud800"}],
    ids=["nan", "infinity", "surrogate"],
)
def test_headers_without_json_form_are_rejected(headers: dict[str, Any]) -> None:
    sent = env.Envelope("RESPONSE", {}, headers=headers)
    with pytest.raises(ValueError):
        _encoding.seal(sent, "x")


def test_too_large_message_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = env.Envelope("RESPONSE", {"a": "x" * 100})
    monkeypatch.setattr(_encoding, "LIMIT", len(_encoding.seal(sent, "x")) - 1)
    with pytest.raises(exc.TooLarge):
        _encoding.seal(sent, "x")


HEADS = [
    b'{"v":1,"exchange":"x","routing_key":"k","properties":{},"headers":{},"size":0}',
    b'{"v":1,"exchange":"x","routing_key":"k","properties":{},"headers":{"a":"\\u0041"},"size":0}',
    b' {"v": 1, "exchange": "x", "routing_key": "k", "properties": {}, "headers": {}, "size": 0} ',
    b'{"v":1,"exchange":"x","routing_key":"k","properties":{},"headers":{"a":1,"a":2},"size":0}',
    b'{"v":1,"exchange":"","routing_key":"","properties":{},"headers":{"a":-9223372036854775809},"size":0}',
    b'{"v":1,"exchange":"x","routing_key":"k","properties":{"a":1e400},"headers":{"a":1E1},"size":0}',
]
PIECES = st.sampled_from(
    [
        *(b"\\ud800", b"NaN", b"1e400", b"123456789012345678901", b"1E1", b"-0", b"\xff", b" "),
        *(b"[", b"]", b"{", b"}", b",", b":", b'"', b"null", b"{}", b"\x00", b'"size":0,', b"x"),
    ]
)


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    data = draw(st.sampled_from(HEADS))
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(data)))
        data = data[:place] + draw(PIECES) + data[place + draw(st.integers(0, 3)) :]
    return data + b"\n"


def verdict(data: bytes) -> tuple[Any, ...]:
    try:
        found = read(data)
    except _encoding.InvalidMessageError as error:
        return ("bad", str(error))
    return (repr(found.headers), repr(found.properties), repr(found.delivery_info), found.body)


@given(heads())
def test_message_is_read_the_same_with_and_without_orjson(data: bytes) -> None:
    found = verdict(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "orjson", None)
        assert verdict(data) == found
    if found[0] != "bad":
        reference = json.loads(data[:-1])
        assert repr(reference["headers"]) == found[0]
