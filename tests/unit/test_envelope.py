"""Envelopes: untrusted headers, sizes, and storage in a ledger."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from wbengine import exceptions as exc
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.types import codec


@dataclass
class Message:
    properties: dict[str, Any] = field(default_factory=dict)
    headers: Any = None
    delivery_info: Any = None
    body: bytes = b""


def made(**headers: Any) -> env.Envelope:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return env.Envelope(pr.RESPONSE, {}, headers=named)


@pytest.mark.parametrize(
    "value",
    [True, -1, 1.5, "3", None, [], 10**30],
    ids=["bool", "negative", "float", "str", "none", "list", "huge"],
)
def test_invalid_number_header_reads_as_default(value: Any) -> None:
    assert made(wbe_epoch=value).number(hd.WBE_EPOCH, 7) == 7


def test_number_header_is_read() -> None:
    assert made(wbe_epoch=3).number(hd.WBE_EPOCH, 7) == 3
    assert made(wbe_epoch=0).number(hd.WBE_EPOCH, 7) == 0
    assert made().number(hd.WBE_EPOCH) == 0


@pytest.mark.parametrize(
    "value",
    [True, -0.5, "3", float("nan"), float("inf"), 1e300, None],
    ids=["bool", "negative", "str", "nan", "infinite", "huge", "none"],
)
def test_invalid_seconds_header_reads_as_none(value: Any) -> None:
    assert made(wbe_period=value).seconds(hd.WBE_PERIOD) is None


def test_seconds_header_is_read() -> None:
    assert made(wbe_period=2).seconds(hd.WBE_PERIOD) == 2.0
    assert made(wbe_period=0.5).seconds(hd.WBE_PERIOD) == 0.5


def test_text_header_of_wrong_type_or_length_reads_as_none() -> None:
    assert made(wbe_worker="w").text(hd.WBE_WORKER) == "w"
    assert made(wbe_worker="w" * 513).text(hd.WBE_WORKER) is None
    assert made(wbe_worker=3).text(hd.WBE_WORKER) is None


def test_peer_without_version_uses_plain_json() -> None:
    assert env.packer(True)((1, 2)) != (1, 2)
    assert env.packer(False)((1, 2), "result") == [1, 2]
    assert env.unpacker(False)({"$wbe": "tuple", "v": []}) == {"$wbe": "tuple", "v": []}


def test_too_large_body_is_refused_with_name_and_sizes() -> None:
    large = env.Envelope(pr.RESPONSE, {"data": "x" * 100})
    env.check_size(large, "copy", "the result", limit=len(large.encoded))
    with pytest.raises(exc.TooLarge, match=r"the result of task 'copy' .* 111 bytes, at most 110"):
        env.check_size(large, "copy", "the result", limit=110)


@pytest.mark.parametrize(
    "result",
    [None, "text", "grüße \u2028 \x00", codec.pack((1, b"x")), {"a": [1.5, None]}],
    ids=["none", "text", "unicode", "typed", "nested"],
)
def test_frozen_reply_thaws_unchanged(result: Any) -> None:
    answer = env.Envelope(
        pr.RESPONSE,
        {"state": pr.SUCCESS, "data": {"result": result}},
        routing_key="engine",
        correlation_id="id-1",
        headers={hd.WBE_VERSION: "1", hd.WBE_SEQ: 2, hd.WBE_STARTED: 1.5},
    )
    again = env.thaw(env.freeze(answer), "id-1", "engine")
    assert (again.type, again.body, again.headers) == (answer.type, answer.body, answer.headers)
    assert (again.routing_key, again.correlation_id) == ("engine", "id-1")
    pr.Response.validate(again.body)


def test_lone_surrogates_in_reply_are_replaced() -> None:
    answer = env.Envelope(pr.RESPONSE, {"a": "\ud800"})
    assert json.loads(answer.encoded) == {"a": "?"}
    assert env.thaw(env.freeze(answer), "id-1").body == {"a": "?"}


@pytest.mark.parametrize("levels", [1, codec.MAX_DEPTH - 1, codec.MAX_DEPTH])
def test_deepest_packable_value_can_be_parsed(levels: int) -> None:
    value: Any = "core"
    for _ in range(levels):
        value = [value]
    packed = env.packer(True)(value, "result")
    for body in (
        {"state": "SUCCESS", "data": {"result": packed}},
        {"arguments": {"x": packed}, "result": ["success", packed]},
    ):
        assert env.parse(env.Envelope("", body).encoded) == body


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff", b"[", b'{"a":1,"a":2}', b"[" * 500 + b"]" * 500],
    ids=["empty", "not-utf8", "truncated", "duplicate-key", "too-deep"],
)
def test_malformed_body_is_refused(body: bytes) -> None:
    with pytest.raises(exc.InvalidFormat):
        env.parse(body)


def test_received_message_becomes_envelope() -> None:
    came = env.received(
        {"a": 1},
        Message(
            {"type": "REQUEST", "correlation_id": "id", "reply_to": "engine"},
            {"wbe-epoch": 2},
            {"routing_key": "q", "redelivered": True},
        ),
    )
    assert (came.type, came.correlation_id, came.reply_to) == ("REQUEST", "id", "engine")
    assert (came.routing_key, came.redelivered) == ("q", True)
    assert came.number(hd.WBE_EPOCH) == 2


@pytest.mark.parametrize(
    ("told", "priority"),
    [(7, 7), (None, 0), ("x", 0), ([], 0), (-3, 0), (10**9, 9), (True, 0)],
    ids=["valid", "none", "str", "list", "negative", "huge", "bool"],
)
def test_copy_replaces_invalid_priority(told: Any, priority: int) -> None:
    message = Message({"priority": told})
    message.body = b"{}"
    assert env.copy_of(message).priority == priority


def test_invalid_properties_of_received_message_are_ignored() -> None:
    came = env.received({}, Message({"correlation_id": 3, "reply_to": ["x"]}))
    assert (came.correlation_id, came.reply_to, came.headers) == (None, None, {})
    assert came.redelivered is False
