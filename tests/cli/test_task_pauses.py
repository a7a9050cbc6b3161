"""`wbengine tasks`, and commands about flows whose tasks are paused."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tests.cli.conftest import Command
from tests.support import paused_tasks
from wbengine import engines
from wbengine.persistence import base


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


CHARGE = "tests.support.paused_tasks.Charge"


def test_parked_flow_is_listed_with_its_pause(wbengine: Command, store: base.Backend) -> None:
    paused = wbengine("tasks", "pause", CHARGE, "--reason", "the bank is down")
    assert (paused.code, paused.err) == (0, "")
    uuid = wbengine("flow", "submit", f"{paused_tasks.__name__}:charging").out.strip()
    with contextlib.closing(store.get_connection()) as connection:
        detail = connection.get_flow_details(uuid)
    engine: Any = engines.load_from_detail(detail, backend=store)
    engine.park_after = 0.0
    engine.run()
    listed = wbengine("flow", "list").out
    assert "  WAITING " in listed and "WAITS FOR" in listed
    assert f"paused: {CHARGE} by " in listed and ": the bank is down" in listed
    shown = wbengine("flow", "show", uuid).out
    assert "state    WAITING" in shown
    assert "waits    charge: Its task type is paused by " in shown
    assert f"charge  {CHARGE}  Its task type" in shown
    assert wbengine("tasks", "resume", CHARGE).code == 0
    wrong = wbengine("tasks", "pause", "charge")
    assert (wrong.code, wrong.out) == (0, "charge: paused\n")
    assert f"of type 'charge' (did you mean {CHARGE!r}?)" in wrong.err
