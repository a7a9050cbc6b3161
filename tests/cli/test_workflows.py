"""Commands that run a workflow."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.support.waiting import until

CHECKOUT = "tests.support.workflows:checkout"
INPUTS = ("--inputs", '{"total": 700}')


@pytest.fixture
def store(home: Path) -> Path:
    (home / "wbengine.toml").write_text('persistence = "sqlite:///flows.db"\n')
    return home


def states(wbengine: Command) -> list[str]:
    return sorted(flow["shown_state"] for flow in wbengine("flow", "list", "--json").json["flows"])


def test_flow_run_accepts_a_workflow(wbengine: Command, store: Path) -> None:
    answer = wbengine("flow", "run", CHECKOUT, "--inputs", '{"total": 7}')
    assert answer.code == 0 and answer.json["results"]["result"] == ["charged 7", None]


def test_results_logs_and_counts_include_steps(wbengine: Command, store: Path) -> None:
    uuid = wbengine("flow", "run", CHECKOUT, "--inputs", '{"total": 7}').json["uuid"]
    assert wbengine("flow", "show", uuid, "--results").json["steps"] == {
        "tests.support.workflows.checkout/1.0-charge": "charged 7"
    }
    assert "1 of 1 step done" in wbengine("flow", "show", uuid).out
    assert "1/1 steps" in wbengine("flow", "list").out
    for name in ("tests.support.workflows.checkout", "charge"):
        assert [line["text"] for line in wbengine("flow", "logs", uuid, name, "--json").lines] == [
            "charging 7"
        ]
    assert wbengine("flow", "logs", uuid, "ship").code != 0


def test_flow_run_of_a_workflow_reports_missing_inputs(wbengine: Command, store: Path) -> None:
    answer = wbengine("flow", "run", CHECKOUT)
    assert answer.code != 0 and "requires 'total'" in answer.error


def test_serve_runs_submitted_and_scheduled_workflows(wbengine: Command, store: Path) -> None:
    submitted = wbengine("flow", "submit", CHECKOUT, *INPUTS).out.strip()
    assert wbengine("schedule", "add", "daily", CHECKOUT, "--every", "1d", *INPUTS).code == 0
    scheduled = wbengine("schedule", "run", "daily").out.strip()
    process = wbengine.begin("serve")
    until(lambda: states(wbengine) == ["WAITING", "WAITING"], 30)
    for uuid in (submitted, scheduled):
        assert wbengine("flow", "signal", uuid, "approved").code == 0
    until(lambda: states(wbengine) == ["SUCCESS", "SUCCESS"], 30)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
