"""`wbengine flow signal` with values of an expected type."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command
from wbengine import engines, testing

FLOW = "tests.support.typed_orders:approved"
FAULT = "signals['approved'].by: 3 is not of type 'string'"


@pytest.fixture
def store(home: Path) -> str:
    (home / "wbengine.toml").write_text('persistence = "sqlite:///flows.db"\n')
    return f"sqlite:///{home}/flows.db"


def test_command_refuses_a_wrong_value_and_sends_a_valid_one(wbengine: Command, store: str) -> None:
    handle = engines.submit(FLOW, backend=store)
    testing.run_submitted(store)
    answer = wbengine("flow", "signal", handle.id, "approved", "--value", '{"by": 3}')
    assert answer.code == 2 and FAULT in answer.error
    answer = wbengine("flow", "signal", handle.id, "approved", "--value", '{"by": "ann"}')
    assert answer.code == 0
    testing.run_submitted(store)
    handle.signal("approved")
    testing.run_submitted(store)
    assert handle.result(10)["result"][0].by == "ann"


def test_discarded_signal_is_in_the_log_of_the_flow(wbengine: Command, store: str) -> None:
    handle = engines.submit(FLOW, backend=store)
    handle.signal("approved", {"by": 3})
    testing.run_submitted(store)
    logs = wbengine("flow", "logs", handle.id).out
    assert "Signal 'approved' was discarded: signals['approved'].by: expected str, got 3" in logs
