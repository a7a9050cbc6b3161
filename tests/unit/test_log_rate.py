"""Rate limit of log messages: one warning per reason and minute."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from wbengine._logs import repeated_messages
from wbengine.transports import resolve
from wbengine.transports._broker import Frame

LOG = logging.getLogger("wbengine.test")


def test_each_reason_is_logged_once_per_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(repeated_messages.time, "monotonic", lambda: now[0])
    rare = repeated_messages.RareWarnings(LOG)
    for number in range(3):
        rare.warn("one", "message %s", number)
        rare.warn("other", "message %s", "x")
    now[0] += repeated_messages.PERIOD_SECONDS
    rare.warn("one", "message %s", 3)
    assert caplog.messages == [
        "message 0 (1 of those so far)", "message x (1 of those so far)",
        "message 3 (4 of those so far)",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["memory", "filesystem"])
def test_discarded_invalid_messages_are_logged_once(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"memory://{tmp_path.name}" if kind == "memory" else f"filesystem://{tmp_path}/broker"
    with resolve(url, exchange="x").open() as broker:
        broker.declare_queue("q")
        assert all(broker.publish_many([Frame("", "q", 0, b"none")] * 50))
        taken = [each for _, each in _all(broker)]
        for each in taken:
            broker.discard(each, "it is none")
    assert len(taken) == 50
    assert len(caplog.messages) == 1


def _all(broker: Any) -> list[Any]:
    found: list[Any] = []
    broker.watch("q")
    while some := broker.take_many([(50, ["q"])]):
        found += some
    return found
