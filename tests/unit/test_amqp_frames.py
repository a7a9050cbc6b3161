"""AMQP frames: each is compared with the frame of py-amqp."""

from __future__ import annotations

import types
from typing import Any

import amqp
import pytest
from amqp import method_framing, serialization
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.amqp_frames import MOST, Peer, delivered, written
from wbengine.transports._amqp import amqp_frames as delivery
from wbengine.transports._amqp import amqp_frames as frames

SHORT = st.text(max_size=60)


def trees(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | SHORT | leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SHORT, inner, max_size=3),
        max_leaves=8,
    )


VALUES = trees(st.floats(allow_nan=False))
JSON = trees(st.floats(allow_nan=False, allow_infinity=False))
TABLES = st.dictionaries(SHORT, VALUES, max_size=6)
CHANNEL: Any = types.SimpleNamespace(raw=None)


@given(TABLES)
def test_tables_are_written_as_py_amqp_does(values: dict[str, Any]) -> None:
    assert frames.table(values) == serialization.dumps("F", [values])


@given(
    headers=TABLES,
    kind=SHORT,
    mode=st.sampled_from([1, 2]),
    priority=st.integers(0, 9),
    texts=st.tuples(*[st.none() | SHORT] * 3),
    body=st.binary(max_size=3 * MOST),
    key=SHORT,
    mandatory=st.booleans(),
)
def test_messages_are_written_as_py_amqp_does(
    headers: dict[str, Any],
    kind: str,
    mode: int,
    priority: int,
    texts: tuple[str | None, ...],
    body: bytes,
    key: str,
    mandatory: bool,
) -> None:
    head = frames.properties(kind, headers, mode, priority, *texts)
    names = ("correlation_id", "reply_to", "message_id")
    message = amqp.Message(
        body,
        content_type="application/json",
        content_encoding="utf-8",
        application_headers=headers,
        delivery_mode=mode,
        priority=priority,
        type=kind,
        **{name: text for name, text in zip(names, texts, strict=True) if text is not None},
    )
    assert head == message._serialize_properties()
    args = serialization.dumps("Bssbb", (0, "x", key, mandatory, False))
    ours = frames.Frames(7, "x", MOST).publish(key, mandatory, head, body)
    assert ours == written(message, (60, 40), args)


@given(st.integers(1, 2**64 - 1), st.booleans())
def test_receipts_are_written_as_py_amqp_does(tag: int, multiple: bool) -> None:
    peer = Peer()
    args = serialization.dumps("Lb", (tag, multiple))
    method_framing.frame_writer(peer, peer)(1, 7, (60, 80), args, None)
    assert frames.Frames(7, "x", MOST).ack(tag, multiple) == peer.said


def test_short_strings_over_255_bytes_are_rejected() -> None:
    made = frames.Frames(7, "x", MOST)
    with pytest.raises(ValueError):
        made.publish("k" * 256, False, b"", b"")
    with pytest.raises(ValueError):
        frames.properties("t", {}, 1, 0, "c" * 256, None, None)
    with pytest.raises(ValueError):
        frames.properties("t", {"n" * 256: 1}, 1, 0, None, None, None)


@given(headers=TABLES, body=st.binary(max_size=MOST - 600), again=st.booleans(), more=st.binary())
def test_delivery_is_read_as_py_amqp_reads_it(
    headers: dict[str, Any], body: bytes, again: bool, more: bytes
) -> None:
    message = amqp.Message(
        body,
        content_type="application/json",
        application_headers=headers,
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="r",
        message_id="m",
        type="t",
    )
    said = delivered(message, 2**40, again)
    found = delivery.read(b"before" + said + more, len(b"before"), CHANNEL)
    if len(said) > MOST:  # py-amqp divided the body into several frames
        assert found is None or found[1] == len(b"before") + len(said)
        return
    assert found is not None
    ours, end = found
    assert end == len(b"before") + len(said)
    theirs = Peer().hear(said)
    assert ours.properties == theirs.properties
    assert ours.body == (theirs.body or b"")
    assert ours.delivery_info == {
        "consumer_tag": "consumer",
        "delivery_tag": 2**40,
        "redelivered": again,
        "exchange": "x",
        "routing_key": "key",
    }
    assert "compression" not in ours.headers
    assert ours.compressed == ("compression" in headers)


def test_incomplete_delivery_is_not_read() -> None:
    said = delivered(amqp.Message(b"body", type="t", application_headers={"a": 1}))
    assert delivery.read(said, 0, CHANNEL) is not None
    for cut in range(len(said)):
        assert delivery.read(said[:cut], 0, CHANNEL) is None


@pytest.mark.parametrize("body", [b"", b"x" * 3 * MOST], ids=["empty", "large"])
def test_empty_body_is_read_and_body_of_several_frames_is_not(body: bytes) -> None:
    said = delivered(amqp.Message(body, type="t"))
    found = delivery.read(said, 0, CHANNEL)
    if body:
        assert found is None  # py-amqp joins the parts
    else:
        assert found is not None and found[0].body == b""


def test_delivery_with_unsupported_property_is_left_to_py_amqp() -> None:
    said = delivered(amqp.Message(b"body", type="t", expiration="1000"))
    assert delivery.read(said, 0, CHANNEL) is None


@given(st.dictionaries(SHORT.map("wbe-{}".format) | st.sampled_from(["task", "id"]), JSON))
def test_wbe_headers_are_sent_as_one_header_and_restored(headers: dict[str, Any]) -> None:
    packed = frames.pack(headers)
    own = [name for name in headers if name.startswith("wbe-")]
    assert sorted(packed) == sorted({*headers} - {*own} | ({"wbe"} if own else set()))
    head = frames.properties("t", headers, 1, 0, None, None, None)
    message = amqp.Message(b"", type="t")
    message._load_properties(60, head, 0)
    received = frames.Delivery(CHANNEL, "", 1, False, "x", "k", message.properties, b"")
    assert received.headers == headers


@pytest.mark.parametrize(
    "value", ["{", "[1]", 3, None, '{"wbe-epoch": NaN}', '"\\ud800"', "[" * 100_000, {"wbe-a": 1}]
)
def test_invalid_packed_header_is_dropped(value: Any) -> None:
    assert frames.unpack({"task": "a", "wbe": value}) == {"task": "a"}


def test_packed_header_cannot_replace_other_headers() -> None:
    assert frames.unpack({"task": "a", "wbe": '{"task": "b", "wbe-epoch": 2}'}) == {
        "task": "a",
        "wbe-epoch": 2,
    }
