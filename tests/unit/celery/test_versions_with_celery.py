"""Messages that Celery's sender makes are read here, and ours are read by Celery's worker."""

from __future__ import annotations

import base64
import json
import pathlib
import random
import subprocess
import sys
from datetime import datetime
from typing import Any

import pytest

from tests.support.amounts import amount
from tests.unit.celery import making
from wbengine import limits
from wbengine.interop.celery.protocol import codec, serializers
from wbengine.interop.celery.protocol.message import TaskMessage
from wbengine.interop.celery.protocol.wire import Wire

COUNT = amount(300, 1_000)  # each way
BATCHES = 5
PEER = pathlib.Path(__file__).with_name("peer.py")
ACCEPTED = serializers.Accepted()


def celery(lines: list[list[Any]]) -> list[dict[str, Any]]:
    """The peer's answers."""
    process = subprocess.run(
        [sys.executable, str(PEER)],
        input="\n".join(map(json.dumps, lines)),
        capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-2000:]
    return [json.loads(line) for line in process.stdout.splitlines()]


def protocol_of(seed: int) -> int:
    return 1 if seed % 3 == 0 else 2


def when(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def ours(fields: dict[str, Any], protocol: int) -> TaskMessage:
    """The message that holds made-up fields."""
    return TaskMessage(
        **{key: tuple(one) if isinstance(one, list) else one for key, one in fields.items()}
        | {
            "eta": when(fields["eta"]),
            "expires": when(fields["expires"]),
            "timelimit": limits.TimeLimit(*fields["timelimit"]),
            "protocol": protocol,
        }
    )


@pytest.mark.parametrize("batch", range(BATCHES))
def test_what_celery_sends_is_read_and_what_is_sent_celery_reads(batch: int) -> None:
    seeds = range(batch * COUNT, (batch + 1) * COUNT)
    mine = [making.message(random.Random(10**6 + seed), protocol_of(seed)) for seed in seeds]
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
    """What Celery made is read as what it was made of, and, written again, the same."""
    wire = Wire(
        answer["headers"], answer["properties"], answer["content_type"],
        answer["content_encoding"], answer["body"].encode(),
    )  # fmt: skip
    message = codec.decode(wire, ACCEPTED)
    expected = ours(answer["fields"], protocol)
    expected.correlation_id = expected.id
    assert message == expected
    again = codec.encode(message)
    body, times = json.loads(wire.body), times_of(message)  # the same times, now in UTC
    assert json.loads(again.body) == (body if protocol == 2 else body | times)
    assert again.headers == (wire.headers | times if protocol == 2 else {})


def times_of(message: TaskMessage) -> dict[str, str | None]:
    return {
        "eta": message.eta and message.eta.isoformat(),
        "expires": message.expires and message.expires.isoformat(),
    }


def check_sent(fields: dict[str, Any], answer: dict[str, Any], protocol: int) -> None:
    """Celery's worker reads what was meant."""
    soft, hard = fields["timelimit"]
    assert (answer.pop("soft_time_limit"), answer.pop("time_limit")) == (soft, hard)
    for name in ("eta", "expires"):
        assert when(answer.pop(name)) == when(fields[name])
    for name in ("callbacks", "errbacks", "chain"):
        assert (answer.pop(name) or []) == fields.get(name, [])
    if protocol == 1:  # made of the arguments by the reader
        del answer["argsrepr"], answer["kwargsrepr"]
    assert answer.pop("correlation_id") == fields["id"]
    for name, found in answer.items():
        none = {} if name == "stamps" and protocol == 2 else None
        none = {"ignore_result": False, "replaced_task_nesting": 0}.get(name, none)
        assert found == fields.get(name, none), name
