"""Typed messages: round trips, plain peers and hostile headers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wbengine import exceptions as exc
from wbengine._concurrency import time_limits
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.engines.worker_based._messages import worker_commands as commands
from wbengine.engines.worker_based._messages import worker_life as lives
from wbengine.engines.worker_based._messages.notices import Heartbeat, Query
from wbengine.engines.worker_based._messages.request_messages import Death, Reply, RequestMessage

LABELS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9-]{0,20}", fullmatch=True)
COUNTS = st.integers(0, 2**53)
SECONDS = st.floats(0, 2**53)
OURS = st.just(True)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
BODY = {"action": "execute", "task_cls": "a.B", "task_name": "b", "task_version": [1, 0]}
NAMES = [value for name, value in vars(hd).items() if name.isupper() and isinstance(value, str)]
NUMBERS = st.integers() | st.floats() | st.just(10**400)
HOSTILE = st.dictionaries(
    st.sampled_from(NAMES), st.none() | NUMBERS | VALUES | st.binary(max_size=3) | LABELS
)


@dataclass
class Delivered:
    """A message as a broker delivers it."""

    body: bytes
    properties: dict[str, Any]
    headers: dict[str, Any]
    delivery_info: dict[str, Any]


def delivered(sent: env.Envelope, redelivered: bool = False) -> env.Envelope:
    """Return the envelope that the receiver of an encoded message reads."""
    properties = {
        "type": sent.type, "correlation_id": sent.correlation_id, "reply_to": sent.reply_to
    }  # fmt: skip
    info = {"routing_key": sent.routing_key, "redelivered": redelivered}
    headers = json.loads(sent.encoded_headers)
    message = Delivered(sent.encoded, properties, headers, info)
    return env.received(env.parse(sent.encoded), message)


def limits() -> st.SearchStrategy[time_limits.TimeLimit]:
    hard = st.none() | st.floats(1, 1000)
    return hard.map(lambda seconds: time_limits.read((None, seconds)))


@given(
    st.builds(
        RequestMessage, LABELS, LABELS, VALUES.map(lambda v: {**BODY, "arguments": {"x": v}}), OURS,
        version=st.just(hd.VERSION), ledger=st.none(), epoch=COUNTS,
        attempt=st.integers(1, 2**53), flow=st.just("") | LABELS,
        captures=st.booleans(), limit=limits(), expires=st.none() | SECONDS,
        redelivered=st.booleans(), row=st.just("") | LABELS, settled=COUNTS,
    ).map(lambda request: request if request.row else request._replace(settled=0)),
    st.none() | LABELS,
)  # fmt: skip
def test_request_is_unchanged_after_a_round_trip(
    request: RequestMessage, ledger: str | None
) -> None:
    if ledger is not None:
        request = request._replace(ledger=ledger, expires=None)
    message = delivered(request.to_message("q", priority=3), request.redelivered)
    assert RequestMessage.from_message(message) == request
    assert (message.routing_key, message.headers[hd.RETRIES]) == ("q", request.attempt - 1)


@given(
    st.builds(
        Reply, LABELS, st.sampled_from((pr.RUNNING, pr.SUCCESS, pr.EVENT)),
        st.dictionaries(st.sampled_from(("result", "details")), VALUES), OURS,
        is_lost=st.just(False), worker=st.none() | LABELS, epoch=st.none() | COUNTS, seq=COUNTS,
        ask_number=st.none() | COUNTS, started_at=st.none() | SECONDS,
        ended_at=st.none() | SECONDS, to=LABELS,
    ),
    st.booleans(),
)  # fmt: skip
def test_reply_is_unchanged_after_a_round_trip(reply: Reply, lost: bool) -> None:
    if lost:
        reply = reply._replace(state=pr.FAILURE, is_lost=True)
    assert Reply.from_message(delivered(reply.to_message())) == reply


@given(
    st.builds(
        Heartbeat, LABELS, st.lists(LABELS), OURS, worker=LABELS, state=st.none() | LABELS,
        slots=st.none() | COUNTS, running=st.none() | COUNTS,
        life=st.none() | st.builds(lives.Life, st.sampled_from(sorted(lives.STATES))),
        software=st.none() | LABELS, ledger=st.none() | LABELS, period=st.none() | SECONDS,
        formats=st.lists(st.integers()).map(tuple), ids=st.none() | st.lists(LABELS),
        sent_at=st.none() | SECONDS,
    )
)  # fmt: skip
def test_heartbeat_is_unchanged_after_a_round_trip(heartbeat: Heartbeat) -> None:
    assert Heartbeat.from_message(delivered(heartbeat.to_message("engine"))) == heartbeat


@given(st.builds(Query, LABELS, st.none() | SECONDS, st.none() | LABELS))
def test_query_is_unchanged_after_a_round_trip(query: Query) -> None:
    assert Query.from_message(delivered(query.to_message("w"))) == query


@given(st.lists(st.tuples(LABELS, COUNTS)), LABELS, st.booleans())
def test_commands_are_unchanged_after_a_round_trip(
    requests: list[tuple[str, int]], reply_to: str, direct: bool
) -> None:
    ask = commands.Ask(requests, reply_to, direct)
    assert commands.Ask.from_message(delivered(ask.to_message("w"))) == ask
    cancellation = commands.Cancellation(requests)
    message = delivered(cancellation.to_message("w"))
    assert commands.Cancellation.from_message(message) == cancellation
    assert delivered(commands.control("drain", "w")).body == {"do": "drain"}


def test_messages_for_taskflow_have_no_headers_of_wbengine() -> None:
    request = RequestMessage("id", "engine", BODY, extended=False)
    reply = Reply("id", pr.RUNNING, {}, extended=False, worker="w", epoch=3, seq=1, is_lost=True)
    heartbeat = Heartbeat("t", ["a.B"], extended=False, worker="w", slots=3)
    for message in (request.to_message("q"), reply.to_message(), heartbeat.to_message("e")):
        assert not [name for name in message.headers if name.startswith("wbe-")]


def test_messages_of_taskflow_get_the_defaults() -> None:
    def plain(kind: str, body: dict[str, Any]) -> env.Envelope:
        return delivered(env.Envelope(kind, body, "k", "id", "engine"))

    request = RequestMessage.from_message(plain(pr.REQUEST, BODY))
    assert request == RequestMessage("id", "engine", BODY, extended=False)
    assert request.version_error() is None
    reply = Reply.from_message(plain(pr.RESPONSE, {"state": pr.RUNNING, "data": {}}))
    assert reply == Reply("id", pr.RUNNING, {}, extended=False, to="k")
    heartbeat = Heartbeat.from_message(plain(pr.NOTIFY, {"topic": "t", "tasks": ["a.B"]}))
    assert heartbeat == Heartbeat("t", ["a.B"], extended=False)


@given(HOSTILE)
def test_hostile_headers_are_replaced_by_defaults(headers: dict[str, Any]) -> None:
    def message(body: dict[str, Any]) -> env.Envelope:
        return env.Envelope("", body, "k", "id", "engine", dict(headers))

    request = RequestMessage.from_message(message(BODY))
    assert request.epoch >= 0 and request.attempt >= 0
    assert type(request.flow) is str and type(request.ledger) in (str, type(None))
    assert request.expires is None or 0 <= request.expires <= 2**53
    reply = Reply.from_message(message({"state": pr.FAILURE, "data": {}}))
    for number in (reply.epoch, reply.seq, reply.ask_number):
        assert number is None or 0 <= number <= 2**53
    for seconds in (reply.started_at, reply.ended_at):
        assert seconds is None or 0 <= seconds <= 2**53
    assert type(reply.worker) in (str, type(None))
    Query.from_message(message({}))
    Death.from_message(message({}))


@given(HOSTILE)
def test_hostile_heartbeat_is_read_or_invalid(headers: dict[str, Any]) -> None:
    body = {"topic": "t", "tasks": ["a.B"]}
    try:
        heartbeat = Heartbeat.from_message(env.Envelope(pr.NOTIFY, body, headers=headers))
    except exc.InvalidFormat:
        return
    assert all(type(each) is str for each in heartbeat.ids or ())
    assert heartbeat.slots is None or 0 <= heartbeat.slots <= 2**53


@pytest.mark.parametrize("version", ["2", 1, None, []], ids=["later", "int", "none", "list"])
def test_other_version_of_the_protocol_is_an_error(version: Any) -> None:
    error = RequestMessage("id", "engine", BODY, version=version).version_error()
    assert isinstance(error, exc.IncompatibleVersion)


@pytest.mark.parametrize(("kind", "name"), [(commands.ASK, "asked"), (commands.CANCEL, "cancel")])
def test_commands_with_malformed_request_lists_are_rejected(kind: str, name: str) -> None:
    malformed = [
        None, 1, [1], [["a"]], [["a", "1"]], [[1, 1]], [["a", True]], [["../a", 1]],
        [["a" * 300, 1]], [["a", 1]] * 501, [["a", -1]], [["a", 2**53 + 1]],
    ]  # fmt: skip
    for body in ({}, [], None, *({name: pairs} for pairs in malformed)):
        with pytest.raises(exc.InvalidFormat):
            commands.SCHEMAS[kind].check(body)


def test_asks_are_split_into_messages_of_500_requests() -> None:
    messages = list(commands.asks([(f"id-{n}", n) for n in range(1001)], "all", "me"))
    assert [len(message.body["asked"]) for message in messages] == [500, 500, 1]
    for message in messages:
        commands.SCHEMAS[commands.ASK].check(json.loads(message.encoded))
    assert commands.Ask.from_message(messages[2]).requests == [("id-1000", 1000)]


#: Values of headers of requests, and how they are read.
READ_HEADERS: list[tuple[str, Any, str, Any]] = [
    *((hd.WBE_EPOCH, value, "epoch", 1) for value in (-1, 1.5, "2", True, None, 10**400)),
    *(
        (hd.EXPIRES, value, "expires", None)
        for value in (float("nan"), "soon", -1, None, True, [1])
    ),
    (hd.TIMELIMIT, [10, 5], "limit", (5.0, 10.0)),
    (hd.TIMELIMIT, [10.5, None], "limit", (None, 10.5)),
    (hd.TIMELIMIT, [None, 2], "limit", (2.0, None)),
    *(
        (hd.TIMELIMIT, value, "limit", (None, None))
        for value in (
            (None, None), None, [5, 10], [0, 0], [1], "ab", 7, [10**400, 1], {"hard": 1, "soft": 2}
        )
    ),
]  # fmt: skip


def test_invalid_headers_of_requests_are_read_as_defaults() -> None:
    for header, value, field, expected in READ_HEADERS:
        message = env.Envelope(pr.REQUEST, BODY, "q", "id", "engine", {header: value})
        assert getattr(RequestMessage.from_message(message), field) == expected, (header, value)
    message.headers = {hd.EXPIRES: 5.0, hd.WBE_LEDGER: "rows"}
    assert RequestMessage.from_message(message).expires is None  # clocks of two hosts may differ
