"""`wbengine tasks` pauses, lists and resumes task types."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Command


def test_pause_is_listed_until_it_is_resumed(wbengine: Command) -> None:
    answer = wbengine("tasks", "pause", "shop.*", "--for", "2h", "--reason", "the bank is down")
    assert answer.code == 0 and answer.out.startswith("shop.*: paused until 2")
    head, line = wbengine("tasks", "list").out.splitlines()
    assert head.split() == ["PAUSED", "SINCE", "UNTIL", "BY", "REASON"]
    assert line.startswith("shop.* ") and line.rstrip().endswith("the bank is down")
    document = wbengine("tasks", "list", "--json").json
    assert document["schema"] == "wbengine/tasks-list/1"
    (pause,) = document["pauses"]
    assert (pause["pattern"], pause["reason"]) == ("shop.*", "the bank is down")
    assert pause["until"] - pause["since"] == pytest.approx(7200)
    assert wbengine("tasks", "resume", "shop.*").out == "shop.*: resumed\n"
    assert "No task types are paused." in wbengine("tasks", "list").err


def test_resuming_misspelled_name_prints_nearest_one(wbengine: Command) -> None:
    assert wbengine("tasks", "pause", "shop.charge").code == 0
    answer = wbengine("tasks", "resume", "shop.chrage")
    assert answer.code == 66
    assert "'shop.chrage'" in answer.err and "'shop.charge'" in answer.err


def test_invalid_name_is_refused(wbengine: Command) -> None:
    answer = wbengine("tasks", "pause", "two words")
    assert answer.code == 2 and "got 'two words'" in answer.err


def test_pause_in_memory_store_is_refused(wbengine: Command) -> None:
    answer = wbengine("tasks", "pause", "shop.charge", "--persistence", "memory://")
    assert answer.code != 0 and "memory" in answer.err
