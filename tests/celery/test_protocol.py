"""Task messages of protocol versions 1 and 2."""

from __future__ import annotations

import dataclasses
import json
import random
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import hypothesis
import jsonschema
import pytest
from hypothesis import strategies as st

from tests.celery import random_messages
from tests.celery.apps import ours
from tests.support import fresh
from wbengine import exceptions, running, task, time_limits
from wbengine.engines.worker_based import endpoint
from wbengine.interop.celery import _protocol as codec
from wbengine.interop.celery import _request, _serializers
from wbengine.interop.celery._protocol import Malformed, TaskMessage
from wbengine.interop.celery._serializers import Wire

UTC = UTC
ACCEPTED = _serializers.Accepted(("json", "msgpack", "yaml"))
ID = "4cc7438e-afd4-4f8f-a2f3-f46567e7ca77"

#: Sample messages of Celery's protocol specification.
CHAIN = Wire(
    {
        "lang": "py",
        "task": "proj.tasks.add",
        "argsrepr": "(2, 2)",
        "kwargsrepr": "{}",
        "origin": "4242@localhost",
    },
    {"correlation_id": ID, "content_type": "application/json", "content_encoding": "utf-8"},
    "application/json",
    "utf-8",
    json.dumps(((2, 2), {}, None)).encode(),
)
PING = Wire(
    content_type="application/json",
    content_encoding="utf-8",
    body=json.dumps(
        {
            "id": ID, "task": "celery.task.PingTask", "args": [], "kwargs": {}, "retries": 0,
            "eta": "2009-11-17T12:30:56.527191",
        }
    ).encode(),
)  # fmt: skip


def v2(headers: dict[str, Any] | None = None, body: Any = ((), {}, None), **more: Any) -> Wire:
    head = {"task": "a", "id": ID, **(headers or {})}
    return Wire(head, more, "application/json", "utf-8", json.dumps(body).encode())


def v1(**body: Any) -> Wire:
    whole = {"task": "a", "id": ID, **body}
    return Wire({}, {}, "application/json", "utf-8", json.dumps(whole).encode())


def read(wire: Wire, **options: Any) -> TaskMessage:
    return codec.decode(wire, ACCEPTED, **options)


# Samples. -----------------------------------------------------------------------------------------


def test_sample_message_of_version_2_is_read_and_written() -> None:
    message = read(CHAIN)
    assert message == TaskMessage(
        "proj.tasks.add", ID, (2, 2), {}, argsrepr="(2, 2)", kwargsrepr="{}",
        origin="4242@localhost", correlation_id=ID,
    )  # fmt: skip
    again = codec.encode(message)
    assert {name: again.headers[name] for name in CHAIN.headers} == CHAIN.headers
    assert again.properties["correlation_id"] == ID
    assert (again.content_type, again.content_encoding) == ("application/json", "utf-8")
    args, kwargs, embed = json.loads(again.body)
    assert (args, kwargs, any(embed.values())) == ([2, 2], {}, False)
    assert read(again) == dataclasses.replace(message, root_id=ID)


class Constructed(task.Task):
    """A task with a constructor that workers call with the name."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)

    def execute(self) -> str:
        return self.name


def test_long_shadow_is_shortened_to_255_characters() -> None:
    message = TaskMessage("proj.tasks.add", ID, shadow="x" * 1000)
    outcome = _request.execute(
        endpoint.Endpoint(Constructed), message, (), {}, running.Request(ID), None, print
    )
    assert outcome.value == "x" * 255


def test_sample_message_of_version_1_is_read_and_written() -> None:
    message = read(PING)
    assert message == TaskMessage(
        "celery.task.PingTask", ID, eta=datetime(2009, 11, 17, 12, 30, 56, 527191, UTC), protocol=1
    )
    again = codec.encode(message)
    given, written = json.loads(PING.body), json.loads(again.body)
    given["eta"] += "+00:00"  # the equivalent time with a zone
    assert {name: written[name] for name in given} == given
    assert not again.headers and written["utc"] is True
    assert read(again) == dataclasses.replace(message, correlation_id=ID)


# Times. ------------------------------------------------------------------------------------------


def test_times_without_a_zone_are_in_utc() -> None:
    noon = datetime(2020, 1, 1, 12, tzinfo=UTC)
    local = timezone(timedelta(hours=2))
    text = "2020-01-01T12:00:00"
    for wire in (
        v2({"eta": text, "expires": text}),
        v1(eta=text, expires=text),
        v1(eta=text, expires=text, utc=True),
        v1(eta="2020-01-01T14:00:00+02:00", expires="2020-01-01T12:00:00Z", utc=False),
        v2(body={"args": [], "eta": text, "expires": text}),
    ):
        message = read(wire, local=local)
        assert (message.eta, message.expires) == (noon, noon)
        assert message.eta is not None and message.eta.tzinfo is UTC


def test_version_1_without_utc_has_times_in_local_zone() -> None:
    local = timezone(timedelta(hours=2))
    ten = datetime(2020, 1, 1, 10, tzinfo=UTC)
    for wire in (
        v1(eta="2020-01-01T12:00:00", utc=False),
        v2(body={"args": [], "eta": "2020-01-01T12:00:00", "utc": False}),
    ):
        assert read(wire, local=local).eta == ten
        assert read(wire).eta == datetime(2020, 1, 1, 12, tzinfo=UTC)


# Other fields. -----------------------------------------------------------------------------------


def test_message_contains_hard_limit_before_soft_limit() -> None:
    """The API of this package names the soft limit first."""
    for wire in (v2({"timelimit": [3, 1]}), v1(timelimit=[3, 1])):
        message = read(wire)
        assert message.timelimit == time_limits.TimeLimit(soft=1, hard=3)
        again = codec.encode(message)
        written = again.headers or json.loads(again.body)
        assert written["timelimit"] == [3, 1]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([None, None], time_limits.UNLIMITED),
        ([0, 0], time_limits.UNLIMITED),
        ([10, None], time_limits.TimeLimit(None, 10)),
        ([None, 10], time_limits.TimeLimit(10, None)),
        ([3, 3], time_limits.TimeLimit(None, 3)),
        ([1, 3], time_limits.TimeLimit(None, 1)),
        ([1e300, 5], time_limits.TimeLimit(5, None)),
        ([float("inf"), None], time_limits.UNLIMITED),
    ],
)
def test_ineffective_time_limit_is_dropped(
    given: list[Any], expected: time_limits.TimeLimit
) -> None:
    message = read(v2({"timelimit": given}))
    assert message.timelimit == expected == time_limits.read(expected)


def test_taskset_is_the_group_of_version_1() -> None:
    assert read(v1(taskset="t")).group == "t"
    assert read(v1(group="g")).group == "g"
    assert read(v1(group="g", taskset="t")).group == "t"
    written = json.loads(codec.encode(TaskMessage("a", ID, group="g", protocol=1)).body)
    assert (written["group"], written["taskset"]) == ("g", "g")


def test_raw_body_is_single_argument() -> None:
    for data, kind, encoding in (
        (b"\x00\xff", "application/data", "binary"),
        ("naïve", "text/plain", "utf-8"),
    ):
        body = data if isinstance(data, bytes) else data.encode()
        message = read(Wire({"task": "a", "id": ID}, {}, kind, encoding, body))
        assert (message.args, message.kwargs, message.raw) == ((data,), {}, True)
        again = codec.encode(message)
        assert (again.body, again.content_type, again.content_encoding) == (body, kind, encoding)
        with pytest.raises(Malformed, match="version 1"):
            codec.encode(message, protocol=1)
    assert not read(v2(body=[["x"], {}, None])).raw
    for args in ((), ("a", "b"), (7,), ("\ud800",)):
        with pytest.raises(Malformed, match="raw"):
            codec.encode(TaskMessage("a", ID, args, raw=True))


def test_string_body_with_json_content_type_is_malformed() -> None:
    with pytest.raises(Malformed, match="embed"):
        read(v2(body="text"))


def test_fields_missing_in_headers_are_read_from_version_1_body() -> None:
    body = {
        "args": [1], "kwargs": {"k": 2}, "id": "other", "shadow": "s", "retries": 3,
        "callbacks": [{"task": "b"}], "chain": [{"task": "c"}],
    }  # fmt: skip
    message = read(v2(body=body))
    assert (message.id, message.args, message.kwargs) == (ID, (1,), {"k": 2})
    assert (message.shadow, message.retries, message.protocol) == ("s", 3, 2)
    assert ([one["task"] for one in message.callbacks], message.chain) == (["b"], ())


def test_correlation_id_replaces_missing_id() -> None:
    assert read(v2({"id": None}, correlation_id="c")).id == "c"
    with pytest.raises(Malformed, match=r"^id or correlation_id must be set"):
        read(v2({"id": None}))


def test_missing_field_has_its_default() -> None:
    message = read(Wire({"task": "a", "id": ID}, {}, "application/json", "", b"[null, null, null]"))
    assert message == TaskMessage("a", ID)
    empty, none = (
        {field.name: None for field in some} for some in (codec.HEADERS, codec.PROPERTIES)
    )
    wire = Wire(empty | {"task": "a", "id": ID}, none, "application/json", "", b"[[],{},{}]")
    assert read(wire) == TaskMessage("a", ID)
    blank = {"shadow": "", "root_id": "", "eta": "", "lang": "", "argsrepr": ""}
    assert read(v2(blank, reply_to="")) == TaskMessage("a", ID)


def test_custom_headers_are_preserved() -> None:
    headers = {"x-mine": [1], "compression": None, "x-death": [], "x-delivery-count": 1, 7: 8}
    message = read(v2(headers))
    assert message.extra == {"x-mine": [1]}
    assert codec.encode(message).headers["x-mine"] == [1]
    assert codec.encode(message, protocol=1).headers == {"x-mine": [1]}


def test_message_is_written_in_format_it_was_read_in() -> None:
    for name in ("json", "msgpack", "yaml"):
        wire = codec.encode(TaskMessage("a", ID, (1,)), serializer=name)
        message = read(wire)
        assert message.content_type == wire.content_type == _serializers.MIME_TYPES[name]
        assert codec.encode(message).content_type == wire.content_type
    assert codec.encode(read(v1())).headers == {}


def test_invalid_priority_is_dropped() -> None:
    for given, expected in ((3, 3), (0, None), (300, None), ("3", None), (True, None)):
        assert read(v2(priority=given)).priority == expected
    assert codec.encode(TaskMessage("a", ID, priority=3)).properties["priority"] == 3
    assert "priority" not in codec.encode(TaskMessage("a", ID)).properties


def test_argsrepr_is_at_most_1024_characters() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError

    for args in (("x" * 10_000,), (["x" * 90] * 999,), ("\ud800",), ([[[[[[1]]]]]],)):
        shown = codec.encode(TaskMessage("a", ID, args)).headers["argsrepr"]
        assert 0 < len(shown) <= 1024 and shown.encode()
    head = codec.encode(TaskMessage("a", ID, (1, "b"), {"k": None})).headers
    assert (head["argsrepr"], head["kwargsrepr"]) == ("(1, 'b')", "{'k': None}")
    with pytest.raises(exceptions.NotEncodable):
        codec.encode(TaskMessage("a", ID, (Odd(),)))


def test_version_1_writes_chain_as_nested_callbacks() -> None:
    chain = [{"task": f"t{n}", "options": {"link": {"task": "own"}}} for n in range(3)]
    wire = codec.encode(TaskMessage("a", ID, chain=chain, callbacks=[{"task": "cb"}]), protocol=1)
    callbacks = json.loads(wire.body)["callbacks"]
    names = []
    while isinstance(callbacks, list):
        names.append([one["task"] for one in callbacks])
        callbacks = callbacks[-1]["options"]["link"]
    assert names == [["cb", "t2"], ["own", "t1"], ["own", "t0"]]
    assert chain[0]["options"] == {"link": {"task": "own"}}


def test_chain_of_10000_is_written_in_version_2_only() -> None:
    chain = [{"task": "t", "options": {"task_id": str(n)}} for n in range(10_000)]
    message = read(codec.encode(TaskMessage("a", ID, chain=chain)))
    assert list(message.chain) == chain
    with pytest.raises(exceptions.NotEncodable):  # nested deeper than JSON parsers accept
        codec.encode(message, protocol=1)


# Invalid messages. --------------------------------------------------------------------------------


#: Headers that both the decoder and the schema of version 2 refuse.
WRONG: list[tuple[str, Any]] = [
    ("task", 7), ("id", 7), ("group_index", -1), ("retries", 2**31), ("timelimit", [1]),
    ("timelimit", ["1", None]), ("stamped_headers", [1]), ("stamps", []), ("ignore_result", 1),
    ("shadow", 0), ("eta", 7), ("task", None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *WRONG, ("task", ""), ("task", "x" * 1001), ("task", "\ud800"), ("id", "x" * 256),
        ("lang", []), ("root_id", {}), ("group", 1.5), ("group_index", "1"), ("group_index", True),
        ("meth", b"x"), ("eta", "tomorrow"), ("eta", "0001-01-01T00:00:00+10:00"), ("expires", []),
        ("retries", 1.0), ("retries", [10**5000]), ("timelimit", 3), ("timelimit", [-1, None]),
        ("timelimit", [float("nan"), None]), ("timelimit", [True, None]), ("argsrepr", 7),
        ("kwargsrepr", "x" * 1_000_001), ("origin", 7), ("replaced_task_nesting", "0"),
        ("stamped_headers", "abc"), ("stamps", {1: 2}),
    ],
)  # fmt: skip
def test_invalid_header_is_named_in_error(name: str, value: Any) -> None:
    wire = v2()
    wire.headers[name] = value
    with pytest.raises(Malformed, match=f"^{name}") as raised:
        read(wire)
    assert raised.value.field.partition("[")[0] == name and len(str(raised.value)) < 300
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("args", {}), ("args", "ab"), ("kwargs", []), ("callbacks", 7), ("callbacks", [7]),
        ("errbacks", [{}]), ("chord", []), ("chord", {"task": ""}), ("taskset", 7),
        ("utc", "yes"), ("timelimit", {}), ("retries", None), ("id", None), ("task", None),
    ],
)  # fmt: skip
def test_invalid_field_of_version_1_is_named_in_error(name: str, value: Any) -> None:
    wire = v1(**{name: value})
    if name == "retries":
        assert read(wire).retries == 0
        return
    with pytest.raises(Malformed) as raised:
        read(wire)
    assert raised.value.field.startswith((name, "task" if name == "chord" else name))


@pytest.mark.parametrize(
    "embed", [{"chain": 3}, {"chord": 3}, {"callbacks": [[]]}, {"errbacks": "x"}, 7, [1]]
)
def test_invalid_embed_is_malformed(embed: Any) -> None:
    with pytest.raises(Malformed):
        read(v2(body=[[], {}, embed]))


def test_unknown_version_or_serializer_is_refused() -> None:
    with pytest.raises(ValueError, match="must be 1 or 2"):
        codec.encode(TaskMessage("a", ID), protocol=3)
    with pytest.raises(ValueError, match="The serializer must be one of"):
        codec.encode(TaskMessage("a", ID), serializer="xml")


# Schemas. -----------------------------------------------------------------------------------------


def parts(wire: Wire) -> dict[str, Any]:
    """Return the message in the form that the schemas describe."""
    headers_and_properties = {"properties": wire.properties, "headers": wire.headers}
    return {**headers_and_properties, "body": json.loads(wire.body)}


def test_written_messages_match_schemas() -> None:
    known = {1: codec.TASK_V1_SCHEMA, 2: codec.TASK_V2_SCHEMA}
    fits = {version: jsonschema.Draft202012Validator(one) for version, one in known.items()}
    for one in fits.values():
        one.check_schema(one.schema)
    for seed in range(200):
        protocol = 1 + seed % 2
        wire = codec.encode(ours(random_messages.message(random.Random(seed), protocol), protocol))
        fits[protocol].validate(parts(wire))


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_schema_refuses_header_that_reader_refuses(name: str, value: Any) -> None:
    wire = v2({name: value})
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(parts(wire), codec.TASK_V2_SCHEMA)


# Times. ------------------------------------------------------------------------------------------

HOUR = timezone(timedelta(hours=1))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("2009-11-17T12:30:56.527191", datetime(2009, 11, 17, 12, 30, 56, 527191, UTC)),
        ("2009-11-17 12:30", datetime(2009, 11, 17, 12, 30, tzinfo=UTC)),
        ("2009-11-17", datetime(2009, 11, 17, tzinfo=UTC)),
        ("2009-11-17T12:30:56.5271919999", datetime(2009, 11, 17, 12, 30, 56, 527191, UTC)),
        ("2009-11-17T12:30:56,5Z", datetime(2009, 11, 17, 12, 30, 56, 500000, UTC)),
        ("2009-11-17T12:30+01:00", datetime(2009, 11, 17, 12, 30, tzinfo=HOUR)),
        (
            "1900-01-01T00:00:00-00:53:28",
            datetime(1900, 1, 1, tzinfo=timezone(-timedelta(minutes=53, seconds=28))),
        ),
    ],
)
def test_iso_8601_time_is_read(words: str, expected: datetime) -> None:
    assert read(v2({"eta": words})).eta == expected


@pytest.mark.parametrize(
    "words",
    [
        "x", "2009", "2009-13-01", "2009-02-30", "2009-11-17T25:00", "2009-11-17T24:01",
        "2009-11-17T12:60", "9999-12-31T24:00", "2009-W54-1", "2009-11-17T12:30+99:00",
        "2009-11-17T12:30Z ", "٢٠٠٩-11-17", "2009-11-17T12:30:00." + "1" * 100,
    ],
)  # fmt: skip
def test_invalid_time_is_malformed(words: str) -> None:
    with pytest.raises(Malformed, match=r"^expires: "):
        read(v2({"expires": words}))


@hypothesis.given(st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=st.timezones()))
def test_isoformat_of_python_is_read(time: datetime) -> None:
    assert read(v2({"eta": time.isoformat()})).eta == time.astimezone(UTC)


def test_times_of_results_are_in_utc() -> None:
    for words in ("2026-01-02T03:04:05", "2026-01-02T04:04:05+01:00"):
        body = json.dumps({"task_id": "i", "status": "SUCCESS", "date_done": words}).encode()
        result = codec.decode_result(Wire({}, {}, "application/json", "utf-8", body), ACCEPTED)
        assert result.date_done == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


# Imports. -----------------------------------------------------------------------------------------


def test_celery_is_not_imported() -> None:
    names = "_protocol", "events", "_serializers", "task", "_publisher", "_results"
    text = "import sys\n" + "".join(f"import wbengine.interop.celery.{n}\n" for n in names)
    text += "print([n for n in sys.modules if n.partition('.')[0] == 'celery'])"
    assert fresh.run(text).stdout.strip() == "[]"
