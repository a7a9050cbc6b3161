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
def test_flow_signals_before_start_are_stored_and_numbered(
    value: tuple[str, ...], wbengine: Command, home: Path
) -> None:
    words = ("--persistence", f"sqlite:///{home}/flows.db")
    uuid = wbengine("flow", "submit", FACTORY, *words).out.strip()
    answer = wbengine("flow", "signal", uuid[:8], "approved", *value, "--json", *words)
    assert answer.json == {
        "schema": "wbengine/flow-signal/1", "uuid": uuid, "signal": "approved", "number": 1,
    }  # fmt: skip
    assert answer.err == ""  # The signals of a flow that never ran are unknown.
    second = wbengine("flow", "signal", uuid, "approved", "--json", *words)
    assert second.json["number"] == 2
    assert wbengine("flow", "resume", uuid, *words).code == 0
    assert wbengine("flow", "export", uuid, "-o", f"{home}/flow.json", *words).code == 0
    data = json.loads((home / "flow.json").read_text())["signals"]
    assert [signal[1].strip() for signal in data] == ["17" if value else "null", "null"]


def test_flow_that_accepts_any_signal_shows_numbers(wbengine: Command, home: Path) -> None:
    store = f"sqlite:///{home}/flows.db"
    words = ("--persistence", store)
    uuid = wbengine("flow", "submit", "tests.support.signalled:ticks", *words).out.strip()
    with backends.backend(store) as backend:
        with contextlib.closing(backend.get_connection()) as connection:
            detail = connection.get_flow_details(uuid)
        engine = engines.load_from_detail(detail, backend=backend)
        thread = threading.Thread(target=engine.run)
        thread.start()
        until(lambda: "  WAITING " in wbengine("flow", "list", *words).out)
        listed = wbengine("flow", "list", *words).out
        assert "tick (since 20" in listed and "tick #2 (since 20" in listed
        shown = wbengine("flow", "show", uuid, *words).out
        assert "Waiting for signal 'tick #2' since " in shown
        wrong = wbengine("flow", "signal", uuid, "tic", *words)
        assert wrong.code == 0 and "nothing waits for signal 'tic' now (did you mean" in wrong.err
        assert "awaited signals: tick" in wrong.err
        strict = wbengine("flow", "signal", uuid, "tic", "--strict", *words)
        assert strict.code == 66 and "; awaited signals: tick" in strict.error
        answers = [wbengine("flow", "signal", uuid, "tick", *words) for _ in range(2)]
        assert [answer.out for answer in answers] == [
            f"ticks {uuid}: received signal tick\n", f"ticks {uuid}: received signal tick #2\n",
        ]  # fmt: skip
        other = wbengine("flow", "signal", uuid, "other", "--json", *words)
        assert other.code == 0 and other.json["number"] == 1
        third = wbengine("flow", "signal", uuid, "tick", "--json", *words)
        assert (third.json["signal"], third.json["number"]) == ("tick", 3)
        thread.join(60)
        assert engine.storage.get_flow_state() == states.SUCCESS
