"""Messages exchanged with Celery's sender, worker and client."""

from __future__ import annotations

import base64
import dataclasses
import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import jsonschema
import pytest

from tests.celery import random_messages
from tests.celery.apps import celery, ours, when
from tests.support.amounts import amount
from wbengine.interop.celery import _protocol as codec
from wbengine.interop.celery import _serializers
from wbengine.interop.celery._protocol import TaskMessage
from wbengine.interop.celery._serializers import Wire

COUNT = amount(300, 1_000)  # in each direction
BATCHES = 4
ACCEPTED = _serializers.Accepted()


def protocol_of(seed: int) -> int:
    return 1 if seed % 3 == 0 else 2


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_messages_are_exchanged_with_celery(batch: int) -> None:
    seeds = range(batch * COUNT, (batch + 1) * COUNT)
    mine = [
        random_messages.message(random.Random(10**6 + seed), protocol_of(seed)) for seed in seeds
    ]
    lines: list[list[Any]] = [["made", seed, protocol_of(seed)] for seed in seeds]
    for seed, fields in zip(seeds, mine, strict=True):
        wire = codec.encode(ours(fields, protocol_of(seed)))
        lines.append(["read", row(wire)])
    answers = celery(lines)
    assert len(answers) == 2 * COUNT
    for seed, answer in zip(seeds, answers[:COUNT], strict=True):
        check_read(answer, protocol_of(seed))
    for seed, fields, answer in zip(seeds, mine, answers[COUNT:], strict=True):
        check_sent(fields, answer, protocol_of(seed))


def row(wire: Wire) -> dict[str, Any]:
    return {
        "headers": wire.headers,
        "properties": wire.properties,
        "content_type": wire.content_type,
        "content_encoding": wire.content_encoding,
        "body": base64.b64encode(wire.body).decode(),
    }


def check_read(answer: dict[str, Any], protocol: int) -> None:
    """Check that a message of Celery is decoded to its fields and encoded unchanged."""
    wire = Wire(
        answer["headers"], answer["properties"], answer["content_type"],
        answer["content_encoding"], answer["body"].encode(),
    )  # fmt: skip
    message = codec.decode(wire, ACCEPTED)
    expected = ours(answer["fields"], protocol)
    expected = dataclasses.replace(expected, correlation_id=expected.id)
    assert message == expected
    again = codec.encode(message)
    body, times = json.loads(wire.body), times_of(message)  # the same times in UTC
    assert json.loads(again.body) == (body if protocol == 2 else body | times)
    assert again.headers == (wire.headers | times if protocol == 2 else {})


def times_of(message: TaskMessage) -> dict[str, str | None]:
    return {
        "eta": message.eta and message.eta.isoformat(),
        "expires": message.expires and message.expires.isoformat(),
    }


def check_sent(fields: dict[str, Any], answer: dict[str, Any], protocol: int) -> None:
    """Check that Celery's worker reads the fields of our message."""
    soft, hard = fields["timelimit"]
    assert (answer.pop("soft_time_limit"), answer.pop("time_limit")) == (soft, hard)
    for name in ("eta", "expires"):
        assert when(answer.pop(name)) == when(fields[name])
    for name in ("callbacks", "errbacks", "chain"):
        assert (answer.pop(name) or []) == fields.get(name, [])
    if protocol == 1:  # the decoder derives them from the arguments
        del answer["argsrepr"], answer["kwargsrepr"]
    assert answer.pop("correlation_id") == fields["id"]
    for name, found in answer.items():
        none = {} if name == "stamps" and protocol == 2 else None
        none = {"ignore_result": False, "replaced_task_nesting": 0}.get(name, none)
        assert found == fields.get(name, none), name


# Results. -----------------------------------------------------------------------------------------

VALUES: list[Any] = [4, None, "ü", [1, {"a": 2.5}], {"k": []}]


@pytest.mark.parametrize("serializer", ["json", "msgpack", "yaml"])
@pytest.mark.parametrize("extended", [False, True])
def test_results_stored_by_celery_are_decoded(serializer: str, extended: bool) -> None:
    conf = {"result_serializer": serializer, "result_extended": extended}
    lines: list[list[Any]] = [
        ["stored", f"id-{at}", "SUCCESS", value, "g" if at % 2 else None, conf]
        for at, value in enumerate(VALUES)
    ]
    lines.append(["stored", "bad", "FAILURE", ["why", 7], None, conf])
    accepted = _serializers.Accepted(serializer)
    decoded = []
    for data in celery(lines):
        wire = Wire({}, {}, _serializers.MIME_TYPES[serializer], "utf-8", base64.b64decode(data))
        decoded.append(codec.decode_result(wire, accepted))
        jsonschema.validate(accepted.read(wire), codec.RESULT_SCHEMA)
        again = codec.encode_result(decoded[-1], serializer)
        assert codec.decode_result(again, accepted) == decoded[-1]
    *good, bad = decoded
    for at, (value, result) in enumerate(zip(VALUES, good, strict=True)):
        assert (result.task_id, result.status, result.result) == (f"id-{at}", "SUCCESS", value)
        assert (result.group_id, result.parent_id) == ("g" if at % 2 else None, "p")
        assert result.traceback is None and list(result.children) == []
        assert result.date_done is not None and result.date_done.utcoffset() == timedelta(0)
        told = (
            result.name,
            result.args,
            result.kwargs,
            result.worker,
            result.retries,
            result.queue,
        )
        expected = ("proj.add", [1], {"k": 2}, "w@h", 3, "q")
        assert told == (expected if extended else (None,) * 6)
    assert (bad.status, bad.traceback) == ("FAILURE", "its traceback")
    assert bad.result == {
        "exc_type": "KeyError", "exc_message": ["why", 7], "exc_module": "builtins",
    }  # fmt: skip


@pytest.mark.parametrize("serializer", ["json", "msgpack", "yaml"])
def test_encoded_results_are_read_by_celery_client(serializer: str) -> None:
    done = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    more: dict[str, Any] = {
        "children": [(("child", None), None)], "date_done": done, "group_id": "g", "name": "proj.a",
        "args": [1], "kwargs": {"k": 2}, "worker": "w@h", "retries": 3, "queue": "q",
    }  # fmt: skip
    good = [codec.Result(f"id-{at}", "SUCCESS", one, **more) for at, one in enumerate(VALUES)]
    why = {"exc_type": "KeyError", "exc_message": ["why", 7], "exc_module": "builtins"}
    bad = codec.Result("bad", "FAILURE", why, "its traceback")
    lines: list[list[Any]] = [
        [
            "result", one.task_id,
            base64.b64encode(codec.encode_result(one, serializer).body).decode(),
            {"result_serializer": serializer},
        ]
        for one in [*good, bad]
    ]  # fmt: skip
    *answers, failed = celery(lines)
    for one, answer in zip(good, answers, strict=True):
        assert answer.pop("done").replace(" ", "T") == done.isoformat()
        assert answer == {
            "status": "SUCCESS", "value": one.result, "traceback": None, "children": ["child"],
            "name": "proj.a", "args": [1], "kwargs": {"k": 2}, "worker": "w@h", "retries": 3,
            "queue": "q",
        }  # fmt: skip
    assert (failed["status"], failed["value"]) == ("FAILURE", ["KeyError", ["why", 7]])
    assert failed["traceback"] == "its traceback"
