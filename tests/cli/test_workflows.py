"""Commands that run workflows, and print their steps and published values."""

from __future__ import annotations

import signal

import pytest

from tests.cli.conftest import Command
from tests.support.waiting import until
from wbengine import task

CHECKOUT = "tests.support.workflows:checkout"
INPUTS = ("--inputs", '{"total": 700}')


pytestmark = pytest.mark.usefixtures("store_url")


def states(wbengine: Command) -> list[str]:
    return sorted(flow["shown_state"] for flow in wbengine("flow", "list", "--json").json["flows"])


def test_results_logs_and_counts_include_steps(wbengine: Command) -> None:
    answer = wbengine("flow", "run", CHECKOUT, "--inputs", '{"total": 7}')
    assert answer.code == 0 and answer.json["results"]["result"] == ["charged 7", None]
    uuid = answer.json["uuid"]
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


def test_serve_runs_submitted_and_scheduled_workflows(wbengine: Command) -> None:
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


@task.task
def work(number):
    return number


@task.workflow(name="report")
def report(steps):
    for number in range(4):
        steps.run(work, number)
    steps.publish("progress", {"done": 4})
    steps.publish("login", {"password": "correct horse battery"})


def test_published_values_are_printed_with_secrets_masked(wbengine: Command) -> None:
    uuid = wbengine("flow", "run", f"{__name__}:report").json["uuid"]
    assert wbengine("flow", "get", uuid).out.splitlines()[1:] == [
        'progress  {"done": 4}',
        'login     {"password": "***"}',
    ]
    assert wbengine("flow", "get", uuid, "progress").out == '{"done": 4}\n'
    values = wbengine("flow", "get", uuid, "--json").json["values"]
    assert values == {"progress": {"done": 4}, "login": {"password": "***"}}
    wbengine.fails(66, "(did you mean 'progress'?)", "flow", "get", uuid, "progres")
    shown = wbengine("flow", "show", uuid).out
    assert "4 x work; the latest:" in shown and "3 work" in shown
    assert "horse" not in wbengine("flow", "show", uuid, "--json").out


def test_steps_are_not_counted_as_atoms_of_the_store(wbengine: Command) -> None:
    wbengine("flow", "run", f"{__name__}:report")
    found = wbengine("db", "check", "--json").json
    assert (found["atoms"], found["steps"]) == (1, 4)
