"""Event messages: written, read, and compared with Celery's own."""

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
from wbengine.interop.celery import events
from wbengine.interop.celery import serializers as wire
from wbengine.interop.celery.protocol import Malformed

#: The reference's own example.
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
    made = wire.Wire(dict(HEADERS), {"delivery_mode": 1}, "application/json", "utf-8", data)
    return dataclasses.replace(made, **changes)


def event(kind: str = "task-started", **fields: Any) -> events.Event:
    return events.Event(kind, "w@h", 7, 1.5, 0, 99, {"uuid": "u1", **fields})


def test_the_references_example_comes_back_as_it_was() -> None:
    (found,) = events.decode(message(BODY))
    assert (found.type, found.group) == ("task-succeeded", "task")
    assert found.fields == {key: BODY[key] for key in ("uuid", "retval", "runtime")}
    made, key = events.encode(found)
    assert json.loads(made.body) == BODY
    assert key == "task.succeeded"
    assert made.headers == HEADERS
    assert made.properties == {"delivery_mode": 1}
    assert (made.content_type, made.content_encoding) == ("application/json", "utf-8")
    assert events.EXCHANGE == "celeryev"


def test_several_are_a_list() -> None:
    told = [event(), event("task-succeeded", result="'ü'")]
    made, key = events.encode(told)
    assert key == "task.multi"
    read = serialization.loads(made.body, made.content_type, made.content_encoding)
    assert read == [each.as_dict() for each in told]
    assert events.decode(made) == told
    assert events.decode(events.encode(told[:1])[0]) == told[:1]


def test_a_list_of_one_group_only() -> None:
    with pytest.raises(ValueError, match="one group"):
        events.encode([event(), event("worker-online")])
    with pytest.raises(ValueError, match="one or more"):
        events.encode([])


def test_it_is_utf8_whatever_is_in_it() -> None:
    made, _ = events.encode(event(result="\ud800 é 漢", other=None))
    assert json.loads(made.body.decode("utf-8"))["result"] == "? é 漢"


def _cycle() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


@pytest.mark.parametrize("what", [float("nan"), object(), {1, 2}, _cycle()])
def test_what_json_cannot_hold_is_refused(what: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        events.encode(event(result=what))


@pytest.mark.parametrize("left_out", ["clock", "utcoffset", "pid"])
def test_what_some_senders_leave_out(left_out: str) -> None:
    (found,) = events.decode(message({k: v for k, v in BODY.items() if k != left_out}))
    assert getattr(found, left_out) is None
    (found,) = events.decode(message({**BODY, left_out: None}))
    assert getattr(found, left_out) is None


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
def test_what_is_no_event(change: dict[str, Any], says: str) -> None:
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
        message(b"[" + b" " * events.LARGEST + b"]"),
    ],
    ids=range(10),
)
def test_what_is_no_event_message(bad: wire.Wire) -> None:
    with pytest.raises(Malformed):
        events.decode(bad)


def test_a_list_with_what_is_no_event_is_refused() -> None:
    with pytest.raises(Malformed, match="clock"):
        events.decode(message([BODY, {**BODY, "clock": "x"}]))


def test_ten_thousand_mutated_messages() -> None:
    dice = random.Random(7)
    bodies = [json.dumps(BODY).encode(), json.dumps([BODY, BODY]).encode()]
    values = [None, True, -1, 2**70, 1e400, "", "x" * 2000, [], {}, [[]], float("nan")]
    read = refused = 0
    for turn in range(10_000):
        if turn % 2:
            data = bytearray(dice.choice(bodies))
            for _ in range(dice.randint(1, 4)):
                data[dice.randrange(len(data))] = dice.randrange(256)
            made = message(bytes(data))
        else:
            made = message({**BODY, dice.choice(list(BODY)): dice.choice(values)})
        try:
            found = events.decode(made)
        except Malformed as error:
            assert len(str(error)) < 500
            refused += 1
        else:
            read += 1
            for one in found:  # what was read can be sent again, and is the same
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
def test_utcoffset_is_what_celery_sends(zone: Any, name: str, hours: float) -> None:
    from celery.utils import time as celery_time

    zone(name)
    assert events.utcoffset() == celery_time.utcoffset() == hours
    assert isinstance(events.utcoffset(), int) == (hours == int(hours))


def test_utcoffset_in_summer(zone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from celery.utils import time as celery_time

    zone("XXX5YYY,J1/0,J365/23:59")  # summer all year
    assert events.utcoffset() == celery_time.utcoffset() == 4


def test_exchanges_are_those_of_celery() -> None:
    import kombu
    from celery.events import event as celery_event

    for url in ("redis://", "memory://", "amqp://"):
        connection = kombu.Connection(url)
        theirs = celery_event.get_exchange(connection)
        assert theirs.name == events.EXCHANGE
        assert theirs.type == events.exchange_type(connection.transport.driver_type)
        assert theirs.durable


def test_the_catalogue_names_each_field_once() -> None:
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
    """Values for all fields of a type."""
    return {name: VALUES.get(name, "text") for name in events.CATALOGUE[kind]}


def test_events_of_celery_are_read() -> None:
    """Each type of the catalogue, with all of its fields."""
    lines = [["told", kind, full(kind)] for kind in events.CATALOGUE]
    for (_, name, fields), row in zip(lines, celery(lines), strict=True):
        wire_ = wire.Wire(
            row["headers"], {"delivery_mode": row["delivery_mode"]}, row["content_type"],
            row["content_encoding"], row["body"].encode(),
        )  # fmt: skip
        (found,) = events.decode(wire_)
        assert (found.type, found.hostname, found.fields) == (name, "w@h", fields)
        assert found.clock and found.pid and found.timestamp > 1e9
        assert found.utcoffset == events.utcoffset()
        made, key = events.encode(found)
        assert (json.loads(made.body), key) == (json.loads(row["body"]), row["routing_key"])
        assert (made.headers, made.properties) == (row["headers"], wire_.properties)
        assert row["exchange"] == events.EXCHANGE
        jsonschema.validate(json.loads(row["body"]), events.SCHEMA)


def test_events_are_read_by_celery() -> None:
    """Its receiver finds all fields, and its state the task, the worker and the flow."""
    told = [
        events.Event(kind, "w@h", at, 1.5, 0, 99, full(kind) | {"uuid": f"u{at}"})
        for at, kind in enumerate(events.CATALOGUE, 1)
        if kind.startswith("task-")
    ]
    online = events.Event("worker-online", "w@h", 1, 1.5, 0, 99, full("worker-online"))
    lines = [["heard", events.encode(one)[0].body.decode()] for one in (told, online)]
    (seen, tasks, _), (also, _, workers) = celery(lines)
    for one, found in zip([*told, online], seen + also, strict=True):
        # Clocks of clients are not believed: it counts for them.
        names = set(one.as_dict()) - {"clock"}
        assert {name: found[name] for name in names} == {n: one.as_dict()[n] for n in names}
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
def test_made_up_events_come_back(kind: str, fields: dict[str, Any]) -> None:
    made = events.Event(kind, "w@h", 1, 2.5, -1, 3, {**fields, "uuid": "u"})
    jsonschema.validate(json.loads(events.encode(made)[0].body), events.SCHEMA)
    assert events.decode(events.encode(made)[0]) == [made]
