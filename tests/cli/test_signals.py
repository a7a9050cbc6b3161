"""`wbengine flow signal`: send a signal to a flow that waits for it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command
from tests.support.engine_threads import Running
from tests.support.waiting import until
from wbengine import engines, states
from wbengine.persistence import base

FACTORY = "tests.support.signalled:flow"


@contextlib.contextmanager
def waiting(wbengine: Command, store: base.Backend, factory: str) -> Iterator[tuple[str, Any]]:
    """Submit a flow, and run it until it waits; yield its uuid and its engine."""
    uuid = wbengine("flow", "submit", factory).out.strip()
    with contextlib.closing(store.get_connection()) as connection:
        detail = connection.get_flow_details(uuid)
    engine = engines.load_from_detail(detail, backend=store)
    with Running(engine):
        until(lambda: "  WAITING " in wbengine("flow", "list").out)
        yield uuid, engine


def test_signal_resumes_a_flow_that_waits_for_it(wbengine: Command, store: base.Backend) -> None:
    with waiting(wbengine, store, FACTORY) as (uuid, engine):
        listed = wbengine("flow", "list").out
        assert "WAITS FOR" in listed and "approved (since 20" in listed and ", until 20" in listed
        shown = wbengine("flow", "show", uuid).out
        assert "state    WAITING" in shown and "0 of 2 tasks done, 1 waiting" in shown
        assert "waits    wait-for-approved: Waiting for signal 'approved' since " in shown
        assert " (until " in shown
        wbengine.fails(66, "(did you mean 'approved'?)", "flow", "signal", uuid, "aproved")
        odd = wbengine("flow", "signal", uuid, "approved", "--value", "{no")
        assert odd.code == 2 and "--value must be JSON" in odd.error
        long = wbengine("flow", "signal", uuid, "approved", "--value", f'"{"x" * 70_000}"')
        assert long.code == 2 and "must have at most 65,536 bytes" in long.error
        answer = wbengine("flow", "signal", uuid, "approved", "--value", '{"by": "ann"}')
        assert (answer.code, answer.err) == (0, "")
        assert answer.out == f"signalled {uuid}: received signal approved\n"
    assert engine.storage.get_flow_state() == states.SUCCESS
    assert engine.storage.fetch("found") == {"by": "ann"}
    wbengine.fails(1, "has ended in SUCCESS", "flow", "signal", uuid, "approved")


@pytest.mark.parametrize("value", [(), ("--value", "17")], ids=["no value", "value"])
def test_flow_signals_before_start_are_stored_and_numbered(
    value: tuple[str, ...], wbengine: Command, store_url: str
) -> None:
    uuid = wbengine("flow", "submit", FACTORY).out.strip()
    answer = wbengine("flow", "signal", uuid[:8], "approved", *value, "--json")
    assert answer.json == {
        "schema": "wbengine/flow-signal/1", "uuid": uuid, "signal": "approved", "number": 1,
    }  # fmt: skip
    assert answer.err == ""  # The signals of a flow that never ran are unknown.
    second = wbengine("flow", "signal", uuid, "approved", "--json")
    assert second.json["number"] == 2
    assert wbengine("flow", "resume", uuid).code == 0
    assert wbengine("flow", "export", uuid, "-o", "flow.json").code == 0
    data = json.loads(Path("flow.json").read_text())["signals"]
    assert [signal[1].strip() for signal in data] == ["17" if value else "null", "null"]


def test_flow_that_accepts_any_signal_shows_numbers(wbengine: Command, store: base.Backend) -> None:
    with waiting(wbengine, store, "tests.support.signalled:ticks") as (uuid, engine):
        listed = wbengine("flow", "list").out
        assert "tick (since 20" in listed and "tick #2 (since 20" in listed
        shown = wbengine("flow", "show", uuid).out
        assert "Waiting for signal 'tick #2' since " in shown
        wrong = wbengine("flow", "signal", uuid, "tic")
        assert wrong.code == 0 and "nothing waits for signal 'tic' now (did you mean" in wrong.err
        assert "awaited signals: tick" in wrong.err
        strict = wbengine("flow", "signal", uuid, "tic", "--strict")
        assert strict.code == 66 and "; awaited signals: tick" in strict.error
        answers = [wbengine("flow", "signal", uuid, "tick") for _ in range(2)]
        assert [answer.out for answer in answers] == [
            f"ticks {uuid}: received signal tick\n", f"ticks {uuid}: received signal tick #2\n",
        ]  # fmt: skip
        other = wbengine("flow", "signal", uuid, "other", "--json")
        assert other.code == 0 and other.json["number"] == 1
        third = wbengine("flow", "signal", uuid, "tick", "--json")
        assert (third.json["signal"], third.json["number"]) == ("tick", 3)
    assert engine.storage.get_flow_state() == states.SUCCESS
