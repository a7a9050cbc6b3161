"""A process with a Celery app, and the messages that it reads and writes."""

from __future__ import annotations

import json
import pathlib
from datetime import datetime
from typing import Any

from tests.support import python
from wbengine import time_limits
from wbengine.interop.celery._protocol import TaskMessage

PEER = pathlib.Path(__file__).with_name("codec_peer.py")


def celery(lines: list[list[Any]]) -> list[dict[str, Any]]:
    """Run the peer process and return its answers."""
    process = python.run(
        [str(PEER)],
        input="\n".join(map(json.dumps, lines)),
        capture_output=True, text=True,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-2000:]
    return [json.loads(line) for line in process.stdout.splitlines()]


def when(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def ours(fields: dict[str, Any], protocol: int) -> TaskMessage:
    """Return the message with these fields."""
    return TaskMessage(
        **{key: tuple(one) if isinstance(one, list) else one for key, one in fields.items()}
        | {
            "eta": when(fields["eta"]),
            "expires": when(fields["expires"]),
            "timelimit": time_limits.TimeLimit(*fields["timelimit"]),
            "protocol": protocol,
        }
    )
