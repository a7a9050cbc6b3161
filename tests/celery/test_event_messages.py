"""Event messages, compared with those of Celery."""

from __future__ import annotations

import dataclasses
import json
import random
import time
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu import serialization

from tests.celery.apps import celery
from wbengine.interop.celery import _serializers as wire
from wbengine.interop.celery import events
from wbengine.interop.celery._protocol import Malformed

#: Example of the reference page.
BODY: dict[str, Any] = {
    "type": "task-succeeded",
    "hostname": "worker1@george.vandelay.com",
    "pid": 6335,
    "clock": 393912923921,
    "timestamp": 1401717709.101747,
    "utcoffset": -1,
    "uuid": "9011d855-fdd1-4f8f-adb3-a413b499eafb",
    "retval": "4",
    "runtime": 0.0003212,
}
HEADERS = {"hostname": "worker1@george.vandelay.com"}


def message(body: Any, **changes: Any) -> wire.Wire:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    wire_message = wire.Wire(dict(HEADERS), {"delivery_mode": 1}, "application/json", "utf-8", data)
    return dataclasses.replace(wire_message, **changes)


def event(kind: str = "task-started", **fields: Any) -> events.Event:
    return events.Event(kind, "w@h", 7, 1.5, 0, 99, {"uuid": "u1", **fields})


def test_documented_event_is_decoded_and_encoded_unchanged() -> None:
    (decoded,) = events.decode(message(BODY))
    assert (decoded.type, decoded.group) == ("task-succeeded", "task")
    assert decoded.fields == {key: BODY[key] for key in ("uuid", "retval", "runtime")}
    encoded, key = events.encode(decoded)
    assert json.loads(encoded.body) == BODY
    assert key == "task.succeeded"
    assert encoded.headers == HEADERS
    assert encoded.properties == {"delivery_mode": 1}
    assert (encoded.content_type, encoded.content_encoding) == ("application/json", "utf-8")
    assert events.EXCHANGE == "celeryev"


def test_several_events_are_encoded_as_a_list() -> None:
    several = [event(), event("task-succeeded", result="'ü'")]
    encoded, key = events.encode(several)
    assert key == "task.multi"
    read = serialization.loads(encoded.body, encoded.content_type, encoded.content_encoding)
    assert read == [each.as_dict() for each in several]
    assert events.decode(encoded) == several
    assert events.decode(events.encode(several[:1])[0]) == several[:1]


def test_events_of_different_groups_in_one_message_are_refused() -> None:
    with pytest.raises(ValueError, match="all of the same group"):
        events.encode([event(), event("worker-online")])
    with pytest.raises(ValueError, match="at least one event"):
        events.encode([])


def test_lone_surrogate_is_replaced_in_encoded_event() -> None:
    encoded, _ = events.encode(event(result="\ud800 é 漢", other=None))
    assert json.loads(encoded.body.decode("utf-8"))["result"] == "? é 漢"


def _cycle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize("what", [float("nan"), object(), {1, 2}, _cycle()])
def test_event_that_json_cannot_encode_is_refused(what: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        events.encode(event(result=what))


@pytest.mark.parametrize("left_out", ["clock", "utcoffset", "pid"])
def test_optional_field_of_event_may_be_missing(left_out: str) -> None:
    (decoded,) = events.decode(message({k: v for k, v in BODY.items() if k != left_out}))
    assert getattr(decoded, left_out) is None
    (decoded,) = events.decode(message({**BODY, left_out: None}))
    assert getattr(decoded, left_out) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"type": None}, "type is missing"),
        ({"type": ""}, "type: '' should be non-empty"),
        ({"type": "x" * 1001}, "type: .* is too long"),
        ({"hostname": 7}, "hostname: 7 is not of type 'string'"),
        ({"uuid": ["a"]}, "uuid: .'a'. is not of type 'string'"),
        ({"uuid": None}, "uuid is missing"),
        ({"timestamp": None}, "timestamp is missing"),
        ({"timestamp": "now"}, "timestamp: 'now' is not of type 'number'"),
        ({"timestamp": 1e300}, "timestamp: 1e.300 is greater than the maximum"),
        ({"clock": -1}, "clock: -1 is less than the minimum of 0"),
        ({"clock": 2**64}, "clock: .* is greater than the maximum"),
        ({"clock": 1.5}, "clock: 1.5 is not of type 'integer'"),
        ({"clock": 10**4000}, "clock: .* is greater than the maximum"),
        ({"pid": True}, "pid: True is not of type"),
        ({"utcoffset": 49}, "utcoffset: 49 is greater than the maximum of 48"),
    ],
)
def test_event_with_invalid_field_is_malformed(change: dict[str, Any], says: str) -> None:
    bad = message({**BODY, **change})
    with pytest.raises(Malformed, match=says):
        events.decode(bad)


@pytest.mark.parametrize(
    "bad",
    [
        message(b"\xff{}"),
        message(b"{"),
        message(b"7"),
        message(b'"text"'),
        message(b"NaN"),
        message(b"[" * 100_000),
        message(BODY, content_type="application/x-python-serialize"),
        message(BODY, content_type=None),
        message(BODY, headers={"compression": "application/x-gzip"}),
        message(b"[" + b" " * events.MAX_EVENT_BYTES + b"]"),
    ],
    ids=[
        "not-utf-8", "incomplete", "number", "text", "nan", "too-deep", "pickle", "no-content-type",
        "compressed", "too-large",
    ],
)  # fmt: skip
def test_invalid_event_message_is_malformed(bad: wire.Wire) -> None:
    with pytest.raises(Malformed):
        events.decode(bad)


def test_list_with_one_invalid_event_is_malformed() -> None:
    with pytest.raises(Malformed, match="clock"):
        events.decode(message([BODY, {**BODY, "clock": "x"}]))


def test_mutated_event_message_is_read_or_refused() -> None:
    dice = random.Random(7)
    bodies = [json.dumps(BODY).encode(), json.dumps([BODY, BODY]).encode()]
    values = [None, True, -1, 2**70, 1e400, "", "x" * 2000, [], {}, [[]], float("nan")]
    read = refused = 0
    for turn in range(10_000):
        if turn % 2:
            data = bytearray(dice.choice(bodies))
            for _ in range(dice.randint(1, 4)):
                data[dice.randrange(len(data))] = dice.randrange(256)
            mutated = message(bytes(data))
        else:
            mutated = message({**BODY, dice.choice(list(BODY)): dice.choice(values)})
        try:
            decoded = events.decode(mutated)
        except Malformed as error:
            assert len(str(error)) < 500
            refused += 1
        else:
            read += 1
            for one in decoded:  # a decoded event can be encoded again
                assert events.decode(events.encode(one)[0]) == [one]
    assert read > 1000
    assert refused > 1000


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def change(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield change
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("name", "hours"),
    [("UTC", 0), ("XXX-2", -2), ("XXX5", 5), ("XXX-5:30", -5.5), ("XXX3:30", 3.5)],
)
def test_utcoffset_equals_celerys(zone: Any, name: str, hours: float) -> None:
    from celery.utils import time as celery_time

    zone(name)
    assert events.utcoffset() == celery_time.utcoffset() == hours
    assert isinstance(events.utcoffset(), int) == (hours == int(hours))


def test_utcoffset_in_summer_time_equals_celerys(
    zone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from celery.utils import time as celery_time

    zone("XXX5YYY,J1/0,J365/23:59")  # summer time all year
    assert events.utcoffset() == celery_time.utcoffset() == 4


def test_event_exchange_equals_celerys() -> None:
    import kombu
    from celery.events import event as celery_event

    for url in ("redis://", "memory://", "amqp://"):
        connection = kombu.Connection(url)
        theirs = celery_event.get_exchange(connection)
        assert theirs.name == events.EXCHANGE
        assert theirs.type == events.exchange_type(connection.transport.driver_type)
        assert theirs.durable


def test_catalogue_has_no_duplicate_fields() -> None:
    for kind, fields in events.CATALOGUE.items():
        names = [*(each.name for each in events.STANDARD), *fields]
        assert len(set(names)) == len(names)
        assert kind.partition("-")[0] in ("task", "worker")
    assert next(iter(events.CATALOGUE)) == "task-sent"
    assert len(events.CATALOGUE) == 11


# Celery's own dispatcher and receiver. ------------------------------------------------------------


VALUES: dict[str, Any] = {
    "retries": 3, "runtime": 1.5, "requeue": True, "terminated": True, "signum": 9, "freq": 2.0,
    "active": 1, "processed": 2, "loadavg": [0.1, 0.2, 0.3],
}  # fmt: skip


def full(kind: str) -> dict[str, Any]:
    """Return values for all fields of an event type."""
    return {name: VALUES.get(name, "text") for name in events.CATALOGUE[kind]}


def test_events_sent_by_celery_are_decoded() -> None:
    lines = [["told", kind, full(kind)] for kind in events.CATALOGUE]
    for (_, name, fields), row in zip(lines, celery(lines), strict=True):
        wire_ = wire.Wire(
            row["headers"], {"delivery_mode": row["delivery_mode"]}, row["content_type"],
            row["content_encoding"], row["body"].encode(),
        )  # fmt: skip
        (decoded,) = events.decode(wire_)
        assert (decoded.type, decoded.hostname, decoded.fields) == (name, "w@h", fields)
        assert decoded.clock and decoded.pid and decoded.timestamp > 1e9
        assert decoded.utcoffset == events.utcoffset()
        encoded, key = events.encode(decoded)
        assert (json.loads(encoded.body), key) == (json.loads(row["body"]), row["routing_key"])
        assert (encoded.headers, encoded.properties) == (row["headers"], wire_.properties)
        assert row["exchange"] == events.EXCHANGE
        jsonschema.validate(json.loads(row["body"]), events.SCHEMA)


def test_encoded_events_are_read_by_celery() -> None:
    """Celery's receiver reads all fields; its state contains the task, the worker and the flow."""
    published = [
        events.Event(kind, "w@h", at, 1.5, 0, 99, full(kind) | {"uuid": f"u{at}"})
        for at, kind in enumerate(events.CATALOGUE, 1)
        if kind.startswith("task-")
    ]
    online = events.Event("worker-online", "w@h", 1, 1.5, 0, 99, full("worker-online"))
    lines = [["heard", events.encode(one)[0].body.decode()] for one in (published, online)]
    (seen, tasks, _), (also, _, workers) = celery(lines)
    for one, received in zip([*published, online], seen + also, strict=True):
        # Celery adjusts the clocks of clients.
        names = set(one.as_dict()) - {"clock"}
        assert {name: received[name] for name in names} == {n: one.as_dict()[n] for n in names}
    assert tasks[0] == ["u1", "PENDING", "text", "text", "text"]
    assert [state for _, state, *_ in tasks[1:5]] == ["RECEIVED", "STARTED", "SUCCESS", "FAILURE"]
    assert workers == ["w@h"]


NAMES = st.text(min_size=1).filter(
    lambda name: name.isprintable() and name not in [one.name for one in events.STANDARD]
)


@given(
    st.sampled_from(list(events.CATALOGUE)),
    st.dictionaries(
        st.text(min_size=1), st.none() | st.booleans() | st.integers(-9, 9) | st.text()
    ),
)
def test_random_event_survives_encoding_and_decoding(kind: str, fields: dict[str, Any]) -> None:
    original = events.Event(kind, "w@h", 1, 2.5, -1, 3, {**fields, "uuid": "u"})
    jsonschema.validate(json.loads(events.encode(original)[0].body), events.SCHEMA)
    assert events.decode(events.encode(original)[0]) == [original]
