"""Sequential checks: a skipped check differs from one that timed out."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from wbengine.diagnosis import _examining, findings


@pytest.mark.parametrize("is_optional", [True, False])
def test_missing_answer_is_a_problem_unless_the_check_is_optional(is_optional: bool) -> None:
    over = threading.Event()

    def checks(line: _examining.Line) -> Iterator[findings.Finding]:
        over.wait()
        yield findings.good("workers", "they answer")

    until = time.monotonic() + 0.05
    (found,) = _examining.Line("workers", checks, until, is_optional=is_optional).findings()
    over.set()
    assert found.text == "no answer within 0 s" and found.good is (None if is_optional else False)


@pytest.mark.parametrize(
    ("options", "least", "good"),
    [({}, 0, None), ({}, 1, False), ({"url": "redis://127.0.0.1:1"}, 0, False)],
)
def test_silent_workers_are_a_problem_only_if_they_are_required(
    options: dict[str, Any], least: int, good: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first check of a new setup spends its time on imports."""
    over = threading.Event()

    def silent(*_: object) -> Iterator[findings.Finding]:
        over.wait()
        return iter(())

    for name in ("_broker", "_ledger"):
        monkeypatch.setattr(_examining, name, lambda *_: iter(()))
    monkeypatch.setattr(_examining, "_workers", silent)
    monkeypatch.delenv("WBENGINE_URL", raising=False)
    found = list(_examining.examine(findings.Place(**options), least, time.monotonic() - 6.5))
    over.set()
    assert [each.good for each in found if each.check == "workers"] == [good]


def test_check_without_remaining_time_is_reported_as_skipped() -> None:
    over = threading.Event()

    def checks(line: _examining.Line) -> Iterator[findings.Finding]:
        over.wait()
        yield findings.good("store", "it answers")

    (found,) = _examining.Line("store", checks, time.monotonic() - 2.0).findings()
    over.set()
    words = "skipped: the previous checks used all the time"
    assert (found.check, found.good, found.text) == ("store", False, words)
