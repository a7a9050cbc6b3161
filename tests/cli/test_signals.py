"""`wbengine flow signal`: send a signal to a flow that waits for it."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.support.waiting import until
from wbengine import engines, states
from wbengine.persistence import backends

FACTORY = "tests.support.signalled:flow"


def test_signal_resumes_a_flow_that_waits_for_it(wbengine: Command, home: Path) -> None:
    store = f"sqlite:///{home}/flows.db"
    words = ("--persistence", store)
    uuid = wbengine("flow", "submit", FACTORY, *words).out.strip()
    with backends.backend(store) as backend:
        with contextlib.closing(backend.get_connection()) as connection:
            detail = connection.get_flow_details(uuid)
        engine = engines.load_from_detail(detail, backend=backend)
        thread = threading.Thread(target=engine.run)
        thread.start()
        until(lambda: "  WAITING " in wbengine("flow", "list", *words).out)
        listed = wbengine("flow", "list", *words).out
        assert "WAITS FOR" in listed and "approved (since 20" in listed and ", until 20" in listed
        shown = wbengine("flow", "show", uuid, *words).out
        assert "state    WAITING" in shown and "0 of 2 tasks done, 1 waiting" in shown
        assert "waits    wait-for-approved: Waiting for signal 'approved' since " in shown
        assert " (until " in shown
        wrong = wbengine("flow", "signal", uuid, "aproved", *words)
        assert wrong.code == 66 and "(did you mean 'approved'?)" in wrong.error
        odd = wbengine("flow", "signal", uuid, "approved", "--value", "{no", *words)
        assert odd.code == 2 and "--value must be JSON" in odd.error
        long = wbengine("flow", "signal", uuid, "approved", "--value", f'"{"x" * 70_000}"', *words)
        assert long.code == 2 and "must have at most 65,536 bytes" in long.error
        answer = wbengine("flow", "signal", uuid, "approved", "--value", '{"by": "ann"}', *words)
        assert (answer.code, answer.err) == (0, "")
        assert answer.out == f"signalled {uuid}: received signal approved\n"
        thread.join(60)
        assert engine.storage.get_flow_state() == states.SUCCESS
        assert engine.storage.fetch("found") == {"by": "ann"}
    again = wbengine("flow", "signal", uuid, "approved", *words)
    assert again.code == 1 and "has ended in SUCCESS" in again.error


@pytest.mark.parametrize("value", [(), ("--value", "17")], ids=["no value", "value"])
def test_flow_signal_before_start_is_stored_and_not_accepted_twice(
    value: tuple[str, ...], wbengine: Command, home: Path
) -> None:
    words = ("--persistence", f"sqlite:///{home}/flows.db")
    uuid = wbengine("flow", "submit", FACTORY, *words).out.strip()
    answer = wbengine("flow", "signal", uuid[:8], "approved", *value, "--json", *words)
    assert answer.json == {"schema": "wbengine/flow-signal/1", "uuid": uuid, "signal": "approved"}
    twice = wbengine("flow", "signal", uuid, "approved", *words)
    assert twice.code == 1 and "already has signal 'approved'" in twice.error
    assert wbengine("flow", "resume", uuid, *words).code == 0
    assert wbengine("flow", "export", uuid, "-o", f"{home}/flow.json", *words).code == 0
    data = json.loads((home / "flow.json").read_text())["signals"]
    assert [signal[:2] for signal in data] == [["approved", "17" if value else "null"]]
