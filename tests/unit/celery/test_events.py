"""Event messages: written, read, and compared with Celery's own."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kombu import serialization

from wbengine.interop.celery.monitoring import events
from wbengine.interop.celery.protocol import wire

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
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def event(kind: str = "task-started", **fields: Any) -> events.Event:
    return events.Event(kind, "w@h", 7, 1.5, 0, 99, {"uuid": "u1", **fields})


def test_the_references_example_comes_back_as_it_was() -> None:
    (found,) = events.decode(message(BODY))
    assert (found.type, found.group, found.action) == ("task-succeeded", "task", "succeeded")
    assert found.uuid == BODY["uuid"]
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
        ({"type": None}, "type of an event"),
        ({"type": ""}, "type of an event"),
        ({"type": "x" * 1001}, "type of an event"),
        ({"hostname": 7}, "hostname of a task-succeeded event is a name, not 7"),
        ({"uuid": ["a"]}, "uuid of a task-succeeded event is a name, not a list of 1"),
        ({"uuid": None}, "uuid"),
        ({"timestamp": None}, "no timestamp"),
        ({"timestamp": "now"}, "timestamp of a task-succeeded event is from"),
        ({"timestamp": 1e300}, "timestamp"),
        ({"clock": -1}, "clock"),
        ({"clock": 2**64}, "clock"),
        ({"clock": 1.5}, "clock"),
        ({"clock": 10**4000}, "clock of a task-succeeded event .* not a very long number"),
        ({"pid": True}, "pid"),
        ({"utcoffset": 49}, "utcoffset"),
    ],
)
def test_what_is_no_event(change: dict[str, Any], says: str) -> None:
    bad = message({**BODY, **change})
    with pytest.raises(events.MalformedEvent, match=says):
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
        message(b"[" + b" " * events.MAX_SIZE + b"]"),
    ],
    ids=range(10),
)
def test_what_is_no_event_message(bad: wire.Wire) -> None:
    with pytest.raises(events.MalformedEvent):
        events.decode(bad)


def test_one_of_a_list_does_not_hurt_the_others() -> None:
    mixed = message([BODY, 7, {**BODY, "clock": "x"}, BODY])
    refused: list[events.MalformedEvent] = []
    assert len(events.decode(mixed, refused.append)) == 2
    assert ["mapping" in str(error) for error in refused] == [True, False]
    with pytest.raises(events.MalformedEvent):
        events.decode(mixed)


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
        except events.MalformedEvent as error:
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
    standard = [each.name for each in events.STANDARD]
    for kind in events.CATALOGUE.values():
        names = [*standard, *(each.name for each in kind.fields)]
        assert len(set(names)) == len(names)
        assert kind.type.partition("-")[0] in ("task", "worker")
    assert next(iter(events.CATALOGUE)) == "task-sent"
    assert len(events.CATALOGUE) == 11
