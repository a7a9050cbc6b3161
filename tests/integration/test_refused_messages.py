"""Requests with bodies that no engine writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.hostile import senders, victims
from tests.hostile.inputs import Input
from tests.support.waiting import until


def request(value: str) -> Input:
    """Return a request whose argument is the given JSON."""
    body = {
        "action": "execute",
        "arguments": {"x": None, "y": 1},
        "task_cls": "tests.support.sample_tasks.Add",
        "task_name": "add",
        "task_version": [1, 0],
    }
    return Input(
        "REQUEST",
        json.dumps(body).replace("null", value).encode(),
        {
            "type": "REQUEST",
            "content_type": "application/json",
            "content_encoding": "utf-8",
            "correlation_id": "9bd0a2a8-63c5-4c1c-9a7c-3a1f9c2a7b10",
            "reply_to": "nobody-here",
        },
        {"wbe-version": "1", "wbe-epoch": 1, "wbe-attempt": 1},
    )


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("[" * 60 + "]" * 60, "handled REQUEST"),
        ("[" * 80 + "]" * 80, "refused body"),
        ('{"k":' * 80 + "1" + "}" * 80, "refused body"),
        ('"' + "[" * 80 + '"', "handled REQUEST"),  # brackets in a text do not nest
        (r'"\ud800"', "refused body"),
        (r'"\ud83d\ude00"', "handled REQUEST"),  # a pair of surrogates is one character
        ("1e400", "refused body"),
        ('{"k": 1, "k": 2}', "refused body"),
    ],
)
def test_request_with_non_strict_or_too_deep_json_body_is_refused(
    value: str, what: str, tmp_path: Path
) -> None:
    with (
        senders.sender("memory", tmp_path, None) as sender,
        victims.worker(sender.url) as target,
    ):
        before = target.counted()
        assert sender.send(target.queues[0], request(value))
        until(lambda: target.counted() != before)
        assert target.counted() - before == {what: 1}
