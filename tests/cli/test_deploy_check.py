"""Changed code: predictions of `wbengine deploy check`, and `flow assign`."""

from __future__ import annotations

import contextlib
import importlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.cli import edited_flows
from tests.cli.conftest import Command
from tests.cli.conftest import write_module as write
from tests.support import conducted
from wbengine import engines, operations, states
from wbengine.persistence import _codes, base

pytestmark = pytest.mark.usefixtures("edited_code")


def begin(store: base.Backend, module: str) -> str:
    """Run a flow of a module until it waits for a signal."""
    engine = engines.load_from_factory(
        f"{module}.order",
        store={"order": 7},
        backend=store,
        name=module,
    )
    engine.park_after = 0.0
    engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    return engine.storage.flow_uuid


def begun(store: base.Backend, module: str) -> tuple[str, str]:
    """Write the unedited workflow, and run it until it waits; return its code and its uuid."""
    text = edited_flows.WORKFLOW.format(helpers="helpers")
    write("helpers", edited_flows.HELPERS)
    write(module, text)
    return text, begin(store, module)


def resumed(store: base.Backend, uuid: str) -> str:
    """Return what happens if an engine continues the flow as a conductor does."""
    with contextlib.closing(store.get_connection()) as connection:
        detail = connection.get_flow_details(uuid)
    try:
        engine = engines.load_from_detail(detail, backend=store)
        engine.park_after, engine.suspends_on_difference = 0.0, True
        engine.compile()
        engine.prepare()
        engine.validate()
    except Exception:
        return "refused"
    with contextlib.suppress(Exception):
        engine.run()
    if engine.storage.flow_detail.is_blocked:
        return "blocked"
    ended = engine.storage.get_flow_state() in (states.FAILURE, states.REVERTED)
    return "fails" if ended else "continues"


def dump() -> list[str]:
    with contextlib.closing(sqlite3.connect("flows.db")) as connection:
        return list(connection.iterdump())


def check(wbengine: Command, *words: str) -> Any:
    answer = wbengine("deploy", "check", "--json", *words)
    assert answer.code == (1 if answer.json["problems"] else 0), answer
    return answer.json


@pytest.mark.slow
def test_predictions_equal_results_of_runs(wbengine: Command, store: base.Backend) -> None:
    uuids = {}
    for edit in edited_flows.EDITS:
        write(f"helpers_{edit.name}", edited_flows.HELPERS)
        write(edit.name, edit.before)
        uuids[edit.name] = begin(store, edit.name)
    for edit in edited_flows.EDITS:
        write(edit.name, edit.after)
        write(f"helpers_{edit.name}", edit.helpers)
    before = dump()
    document = check(wbengine)
    assert dump() == before
    assert document["flows"] == len(uuids)
    predicted = dict.fromkeys(uuids, "continues")
    predicted |= {each["name"]: each["result"] for each in document["findings"]}
    actual = {name: resumed(store, uuid) for name, uuid in uuids.items()}
    # Both continue in a run, until the uncalled step is compared, or without the recorded steps.
    known = {"abandons": "continues", "unclear": "continues"}
    assert {name: known.get(result, result) for name, result in predicted.items()} == actual
    assert predicted == {edit.name: edit.result for edit in edited_flows.EDITS}


def test_repair_line_lets_flow_continue(wbengine: Command, store: base.Backend, home: Path) -> None:
    text, uuid = begun(store, "repaired")
    inserted = "    steps.run(pack, 1)\n"
    write("repaired", text.replace(edited_flows.AUDITED, inserted + edited_flows.AUDITED))
    (finding,) = check(wbengine)["findings"]
    assert finding["repair"] == 'if steps.version("pack", 2) >= 2:'
    assert finding["place"].endswith(
        f"repaired.py:{1 + text[: text.index('steps.run(audit')].count(chr(10))}"
    )
    guarded = f"    {finding['repair']}\n    {inserted}"
    write("repaired", text.replace(edited_flows.AUDITED, guarded + edited_flows.AUDITED))
    assert check(wbengine)["findings"] == []
    assert resumed(store, uuid) == "continues"


#: Edits of `edited_flows.WORKFLOW`: old code, new code, name of the change, part of the hint.
AUDIT, CHARGED, GO = edited_flows.AUDITED, edited_flows.CHARGED, edited_flows.GO
CHARGE_USD = '    receipt = steps.run(charge, order, currency="USD")\n'
REPAIRS = {
    "removed": (AUDIT, "", "audit", "audit below it, before wait-for-go"),
    "early end": (AUDIT + GO, "    return receipt\n", "audit", "keep audit below it"),
    "moved": (AUDIT + GO, GO + AUDIT, "audit", "the old order below it, the new one below else"),
    "arguments": (CHARGED, CHARGE_USD, "charge", "keep the recorded arguments of charge"),
}


@pytest.mark.parametrize("name", REPAIRS)
def test_repair_line_keeps_recorded_calls(
    wbengine: Command, store: base.Backend, name: str
) -> None:
    old, new, change, hint = REPAIRS[name]
    module = f"repair_{name.replace(' ', '_')}"
    text, uuid = begun(store, module)
    write(module, text.replace(old, new))
    (finding,) = check(wbengine)["findings"]
    assert finding["repair"] == f'if steps.version("{change}", 2) < 2:'
    assert hint in finding["hint"]
    kept = f"    {finding['repair']}\n    {edited_flows.indented(old)}"
    if new:
        kept += f"    else:\n    {edited_flows.indented(new)}"
    write(module, text.replace(old, kept))
    assert check(wbengine)["findings"] == []
    assert resumed(store, uuid) == "continues"


def test_hint_names_a_renamed_task_that_recorded_steps_need(
    wbengine: Command, store: base.Backend
) -> None:
    text, uuid = begun(store, "renaming")
    old, new = edited_flows.LOOP, edited_flows.LOOP.replace("pack", "wrap")
    renamed = text.replace("def pack(", "def wrap(")
    write("renaming", renamed.replace(old, new))
    (finding,) = check(wbengine)["findings"]
    assert finding["repair"] == 'if steps.version("pack", 2) < 2:'
    assert finding["hint"].startswith("restore the task renaming:pack")
    restored = "@task.task\ndef pack(order):\n    return [1, 2, 3]\n\n\n@task.task\ndef wrap("
    branches = f"    {finding['repair']}\n    {edited_flows.indented(old)}"
    branches += f"    else:\n    {edited_flows.indented(new)}"
    write("renaming", renamed.replace("@task.task\ndef wrap(", restored).replace(old, branches))
    assert check(wbengine)["findings"] == []
    assert resumed(store, uuid) == "continues"


@pytest.mark.slow
def test_equal_differences_of_many_flows_are_one_finding(
    wbengine: Command, store: base.Backend
) -> None:
    write("many", MANY)
    module = importlib.import_module("many")
    for number in range(60):
        engine = engines.load_from_factory(
            module.order, store={"order": number}, backend=store, name=f"order {number}"
        )
        engine.park_after = 0.0
        engine.run()
    write("many", MANY.replace("charge, order", "charge, str(order)"))
    document = check(wbengine, "--processes", "3")
    (finding,) = document["findings"]
    assert (document["flows"], finding["count"]) == (60, 60)
    assert (finding["steps"], len(finding["examples"])) == ([1, 29], 3)
    out = wbengine("deploy", "check").out
    assert out.startswith("60 flows of many.order would be blocked: step ")
    assert out.endswith("checked 60 flows: 0 continue, 60 would be blocked\n")
    assert check(wbengine, "--name", "order 7")["flows"] == 1


MANY = """\
from wbengine import task


@task.task
def charge(order): ...


@task.task
def look(): ...


@task.workflow(name="order")
def order(steps, order):
    for _ in range(order % 29 + 1):
        steps.run(look)
    steps.run(charge, order)
    steps.wait_for("go")
"""

SIMPLE = """\
from wbengine import task


@task.workflow(name="order")
def order(steps, order):
    steps.wait_for("go")
"""

#: Code before the wait, and part of what the check reports.
HOSTILE = {
    "endless": ("while True: pass", "did not end within 1 s"),
    "sleeping": ("import time; time.sleep(1000)", "did not end within 1 s"),
    "stubborn": (
        # A second handler, as the interruption may come while the first one runs.
        """while True:
        try:
            try:
                while True: sum(())
            except BaseException: ...
        except BaseException: ...""",
        "was killed",
    ),
    "exiting": ("import os; os._exit(3)", "exit code 3"),
    "printing": ("print('x' * 100_000)", None),
    "leaving": ("import sys; sys.exit(3)", "is not called any more"),
    "recursive": ("order(steps, order)", "is not called any more"),
}


def test_hostile_code_does_not_affect_the_check_of_other_flows(
    wbengine: Command, store: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wbengine.operations._deploy_checks._IMPORT_SECONDS", 5.0)
    for name in ("quiet", *HOSTILE, "raising_import", "exiting_import"):
        write(f"code_{name}", SIMPLE)
        begin(store, f"code_{name}")
    for name, (line, _) in HOSTILE.items():
        write(f"code_{name}", SIMPLE.replace("    steps.", f"    {line}\n    steps."))
    write("code_raising_import", "raise KeyError('no setting')\n")
    write("code_exiting_import", "import sys; sys.exit(3)\n")
    document = check(wbengine, "--timelimit", "1", "--processes", "2")
    texts = {each["name"].removeprefix("code_"): each["text"] for each in document["findings"]}
    assert document["flows"] == len(HOSTILE) + 3
    assert texts.keys() == {*HOSTILE, "raising_import", "exiting_import"} - {"printing"}
    for name, (_, text) in HOSTILE.items():
        assert text is None or text in texts[name], texts[name]
    assert "no setting" in texts["raising_import"]


def test_flow_that_is_reverted_needs_the_tasks_of_its_steps(
    wbengine: Command, store: base.Backend
) -> None:
    text, uuid = begun(store, "cancelled")
    operations.cancel(store, uuid)
    write("cancelled", text.replace("(charge, order)", "(pack, order)"))
    assert check(wbengine)["findings"] == []
    write("cancelled", text.replace("charge", "debit"))
    (finding,) = check(wbengine)["findings"]
    assert finding["result"] == "refused" and "does not contain its task" in finding["text"]


def test_flow_with_an_owner_is_checked(wbengine: Command, store: base.Backend) -> None:
    write("owned", SIMPLE)
    uuid = begin(store, "owned")
    write("owned", SIMPLE.replace('"go"', '"gone"'))
    with contextlib.closing(store.get_connection()) as connection:
        lease = connection.acquire_lease(uuid, "another", 60)
        before = dump()
        assert check(wbengine)["problems"] == {"blocked": 1}
        assert dump() == before
        connection.release_lease(lease)


def test_ended_flows_are_checked_only_on_request(wbengine: Command, store: base.Backend) -> None:
    write("ended", SIMPLE)
    uuid = begin(store, "ended")
    operations.signal(store, uuid, "go")
    with contextlib.closing(store.get_connection()) as connection:
        engines.load_from_detail(connection.get_flow_details(uuid), backend=store).run()
    write("ended", None)
    assert check(wbengine)["flows"] == 0
    assert check(wbengine, "--state", "SUCCESS")["problems"] == {"refused": 1}


@pytest.mark.parametrize("url", ["memory://", "sqlite:///missing.db"])
def test_store_must_exist_and_outlive_the_process(wbengine: Command, url: str) -> None:
    answer = wbengine("deploy", "check", "--persistence", url)
    assert answer.code in (2, 69) and "store" in answer.error
    assert not Path("missing.db").exists()


def test_flows_are_assigned_after_confirmation(
    wbengine: Command, store: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(store.get_connection()) as connection:
        uuid = engines.submit(conducted.greeting, backend=store, inputs={"name": "x"}).id
        detail = connection.get_flow_details(uuid)
        detail.code = "tests:v43"
        connection.save_changes(detail, ())
        for version in ("v42", "v43"):
            connection.add_codes(version, ["tests"])
        other = engines.submit(conducted.greeting, backend=store, inputs={"name": "y"}).id
        lines = wbengine("flow", "list").out.splitlines()
        assert "CODE" in lines[0] and ["tests:v43" in line for line in lines[1:]] == [False, True]
        for version, uuids in ("v43", {uuid}), ("tests:v43", {uuid}), ("v42", set()):
            listed = wbengine("flow", "list", "--code-version", version, "--json").json["flows"]
            assert {row["uuid"] for row in listed} == uuids
        answer = wbengine("flow", "cancel", "--code-version", "v43", "--dry-run", "--json")
        assert answer.json["flows"] == [uuid] and other != uuid
        words = ("flow", "assign", "--from-code", "v43", "--to-code")
        answer = wbengine(*words, "v41")
        assert answer.code == 2 and "has no code version 'v41'" in answer.err
        answer = wbengine(*words, "v42")
        assert answer.code == 2 and "pass --yes to assign 1 flow of code v43 to v42" in answer.err
        document = wbengine(*words, "v42", "--dry-run", "--json").json
        assert (document["flows"], document["dry_run"]) == ({"tests": 1}, True)
        assert connection.get_flow_details(uuid).code == "tests:v43"
        monkeypatch.setattr(_codes, "LIVE_SECONDS", 0.0)
        assert "waits for code v43 or newer of tests" in wbengine("flow", "show", uuid).out
        answer = wbengine(*words, "v42", "--yes")
        assert (answer.code, answer.out) == (0, "1 flow of tests assigned\n")
        assert connection.get_flow_details(uuid).code == "tests:v42"
