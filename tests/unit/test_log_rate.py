"""Rate limit of log messages: one warning per reason and minute."""

from __future__ import annotations

import logging

import pytest

from wbengine._logs import repeated_messages

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
