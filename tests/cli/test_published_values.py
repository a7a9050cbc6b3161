"""`wbengine flow get`: print published values, and `flow show`: print steps of workflows."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Command
from wbengine import engines, task
from wbengine.persistence import backends


@task.task
def work(number):
    return number


@task.workflow(name="report")
def report(steps):
    for number in range(4):
        steps.run(work, number)
    steps.publish("progress", {"done": 4})
    steps.publish("login", {"password": "correct horse battery"})


def test_get_prints_published_values_with_secrets_masked(wbengine: Command, home: Path) -> None:
    uri = f"sqlite:///{home}/flows.db"
    with backends.backend(uri) as backend:
        engine = engines.load(report, backend=backend)
        engine.run()
    words = (engine.storage.flow_uuid, "--persistence", uri)
    assert wbengine("flow", "get", *words).out.splitlines()[1:] == [
        'progress  {"done": 4}',
        'login     {"password": "***"}',
    ]
    assert wbengine("flow", "get", *words, "progress").out == '{"done": 4}\n'
    values = json.loads(wbengine("flow", "get", *words, "--json").out)["values"]
    assert values == {"progress": {"done": 4}, "login": {"password": "***"}}
    unknown = wbengine("flow", "get", *words, "progres")
    assert unknown.code == 66 and "(did you mean 'progress'?)" in unknown.error
    shown = wbengine("flow", "show", *words).out
    assert "4 x work; the latest:" in shown and "3 work" in shown
    assert "horse" not in wbengine("flow", "show", *words, "--json").out


def test_steps_are_not_counted_as_atoms_of_the_store(wbengine: Command, home: Path) -> None:
    uri = f"sqlite:///{home}/flows.db"
    with backends.backend(uri) as backend:
        engines.load(report, backend=backend).run()
    words = ("--persistence", uri)
    found = json.loads(wbengine("db", "check", *words, "--json").out)
    assert (found["atoms"], found["steps"]) == (1, 4)
