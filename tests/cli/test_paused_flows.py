"""Commands about flows whose tasks are paused, and about their task types."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from tests.cli.conftest import Command
from tests.support import paused_tasks
from wbengine import engines
from wbengine.persistence import backends

CHARGE = "tests.support.paused_tasks.Charge"


def test_parked_flow_is_listed_with_its_pause(wbengine: Command, home: Path) -> None:
    words = ("--persistence", f"sqlite:///{home}/flows.db")
    paused = wbengine("tasks", "pause", CHARGE, "--reason", "the bank is down", *words)
    assert (paused.code, paused.err) == (0, "")
    uuid = wbengine("flow", "submit", f"{paused_tasks.__name__}:charging", *words).out.strip()
    with backends.backend(words[1]) as backend:
        with contextlib.closing(backend.get_connection()) as connection:
            detail = connection.get_flow_details(uuid)
        engine: Any = engines.load_from_detail(detail, backend=backend)
        engine.park_after = 0.0
        engine.run()
    listed = wbengine("flow", "list", *words).out
    assert "  WAITING " in listed and "WAITS FOR" in listed
    assert f"paused: {CHARGE} by " in listed and ": the bank is down" in listed
    shown = wbengine("flow", "show", uuid, *words).out
    assert "state    WAITING" in shown
    assert "waits    charge: Its task type is paused by " in shown
    assert f"charge  {CHARGE}  Its task type" in shown
    assert wbengine("tasks", "resume", CHARGE, *words).code == 0
    wrong = wbengine("tasks", "pause", "charge", *words)
    assert (wrong.code, wrong.out) == (0, "charge: paused\n")
    assert f"of type 'charge' (did you mean {CHARGE!r}?)" in wrong.err
