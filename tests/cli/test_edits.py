"""Retry of one or several flows, also with other inputs and results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command

PURCHASE = "tests.cli.payments:purchase"
KEEP = ("--engine", "serial://?never_resolve=true")


pytestmark = pytest.mark.usefixtures("store_url")


def failed(wbengine: Command, *words: str, order: int = 1) -> str:
    inputs = json.dumps({"order": order, "card": "bad"})
    answer = wbengine("flow", "run", PURCHASE, "--inputs", inputs, *words)
    assert answer.code == 1
    return str(answer.json["uuid"])


def paid(wbengine: Command, uuid: str) -> object:
    return wbengine("flow", "show", uuid, "--results").json["results"].get("pay")


def test_retry_replaces_input_and_result(wbengine: Command) -> None:
    uuid = failed(wbengine, *KEEP)
    answer = wbengine("flow", "retry", uuid, "--set", 'card="new"', "--set-result", "quote=7",
        "--reason", "wrong card")  # fmt: skip
    assert answer.code == 0 and answer.json["results"]["paid"] == "new 7"
    events = wbengine("flow", "events", uuid).out
    assert "input 'card' and result of 'quote' replaced; retried by " in events
    assert ": wrong card" in events


def test_retry_of_reverted_flow_reads_the_input_from_a_file(
    wbengine: Command, tmp_path: Path
) -> None:
    uuid = failed(wbengine)
    (tmp_path / "card").write_text('"new"')
    answer = wbengine("flow", "retry", uuid, "--set", f"card=@{tmp_path}/card", "--set", "order=2")
    assert answer.code == 0 and answer.json["results"]["paid"] == "new 20"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--set", "order=2"), 1, "task 'quote' has used it"),
        (("--set", "crad=2"), 66, "has no input 'crad' (did you mean 'card'?)"),
        (("--set-result", "pay=1"), 1, "it is in FAILURE and has no result"),
        (("--set", "card=hunter22"), 2, "--set must be JSON"),
        (("--set", "card"), 2, "--set must be NAME=JSON"),
        (("--set", "card=1", "--set", "card=2"), 2, "must contain each key once, got 'card' twice"),
        (("--set", "card=@missing"), 2, "cannot read 'missing'"),
        (("--set", "card=1", "--detach"), 2, "--detach cannot be used with --here, --set"),
    ],
)
def test_refused_edits_change_nothing_and_show_no_value(
    wbengine: Command, words: tuple[str, ...], code: int, text: str
) -> None:
    uuid = failed(wbengine, *KEEP)
    for dry_run in ((), ("--dry-run",)):
        answer = wbengine("flow", "retry", uuid, *words, *dry_run)
        if not (dry_run and "--detach" in words):
            assert (answer.code, "hunter22" in answer.err) == (code, False)
            assert text in answer.err
    assert wbengine("flow", "list", "--json").json["flows"][0]["state"] == "FAILURE"


def test_secret_among_the_arguments_is_reported(
    wbengine: Command, caplog: pytest.LogCaptureFixture
) -> None:
    wbengine("flow", "retry", "0000", "--set", 'password="hunter22"')
    assert "pass it in --set NAME=@FILE or --edits FILE" in caplog.text
    assert "hunter22" not in caplog.text


def test_filters_retry_all_failed_flows_and_report_refusals(wbengine: Command) -> None:
    flows = [failed(wbengine, *KEEP, order=order) for order in (1, 2)]
    reverted = failed(wbengine, order=3)
    plan = wbengine("flow", "retry", "--error", "DECLINED", "--dry-run", "--json")
    assert (plan.json["count"], {*plan.json["flows"]}) == (3, {*flows, reverted})
    dry = wbengine("flow", "retry", "--all", "--set", "order=7", "--dry-run", "--json")
    assert dry.json["flows"] == [reverted] and "would refuse 2 flows: " in dry.err
    assert "task 'quote' has used it" in dry.err
    again = wbengine("flow", "retry", "--error", "declined", "--yes", "--json")
    assert again.code == 1
    assert {each["reason"] for each in again.json["refused"]} == {"pay: ValueError: card declined"}
    answer = wbengine("flow", "retry", "--all", "--set", 'card="new"', "--yes", "--json")
    assert answer.code == 0 and {*answer.json["flows"]} == {*flows, reverted}
    assert [paid(wbengine, uuid) for uuid in (*flows, reverted)] == ["new 10", "new 20", "new 30"]


def test_file_contains_other_edits_for_each_flow(wbengine: Command, tmp_path: Path) -> None:
    one, two = (failed(wbengine, *KEEP, order=order) for order in (1, 2))
    lines = [
        {"flow": one, "set": {"card": "a"}},
        {"flow": two[:13], "set": {"card": "b"}, "set_result": {"quote": 5}},
    ]
    path = tmp_path / "edits"
    path.write_text("\n\n".join(map(json.dumps, lines)), encoding="utf-8-sig")
    answer = wbengine("flow", "retry", "--edits", str(path), "--json")
    assert answer.code == 0 and answer.json["flows"] == [one, two]
    assert [paid(wbengine, uuid) for uuid in (one, two)] == ["a 10", "b 5"]


def test_file_edits_some_of_the_selected_flows(wbengine: Command, tmp_path: Path) -> None:
    one, two = (failed(wbengine, *KEEP, order=order) for order in (1, 2))
    path = tmp_path / "edits"
    path.write_text(json.dumps({"flow": one, "set": {"card": "a"}}))
    words = ("--error", "declined", "--edits", str(path), "--yes", "--json")
    answer = wbengine("flow", "retry", *words)
    assert answer.json["flows"] == [one]
    assert [refused["uuid"] for refused in answer.json["refused"]] == [two]
    assert [paid(wbengine, uuid) for uuid in (one, two)] == ["a 10", None]


@pytest.mark.parametrize("separator", ["\u2028", "\x85"])
def test_value_of_file_contains_a_line_separator(
    wbengine: Command, tmp_path: Path, separator: str
) -> None:
    uuid = failed(wbengine, *KEEP)
    edits = {"flow": uuid, "set": {"card": f"a{separator}b"}}
    path = tmp_path / "edits"
    path.write_text(json.dumps(edits, ensure_ascii=False), encoding="utf-8")
    assert wbengine("flow", "retry", "--edits", str(path)).code == 0
    assert paid(wbengine, uuid) == f"a{separator}b 10"


@pytest.mark.parametrize(
    ("lines", "words", "text"),
    [
        (["{}"], (), "line 1: must be a JSON object with 'flow' (an id)"),
        (['{"flow": "ID", "set": 1}'], (), "line 1: must be a JSON object"),
        (['{"flow": "ID", "sets": {}}'], (), "line 1: must be a JSON object"),
        (['{"flow": "ID"}', "", '{"flow": "ID"}'], (), "line 3: flow ID has an earlier line"),
        (['{"flow": "ID"}', "{hunter22"], (), "line 2: Expecting property name"),
        (
            ['{"flow": "ID"}'],
            ("--error", "nothing"),
            "line 1: flow ID is not selected by",
        ),
        (
            ['{"flow": "ID", "set": {"card": 1, "card": 2}}'],
            (),
            "line 1: an object contains a name",
        ),
        (["", '{"flow": "ffffffff"}'], (), "line 2: Unknown flow 'ffffffff'"),
        ([], ("--set", "card=1"), "--edits contains the values: omit --set"),
        (["", ""], ("ID",), "edits contains no edits"),
    ],
)
def test_invalid_file_of_edits_is_refused(
    wbengine: Command, tmp_path: Path, lines: list[str], words: tuple[str, ...], text: str
) -> None:
    uuid = failed(wbengine, *KEEP)
    path = tmp_path / "edits"
    path.write_text("\n".join(lines).replace("ID", uuid))
    words = tuple(word.replace("ID", uuid) for word in words)
    answer = wbengine("flow", "retry", "--edits", str(path), *words)
    assert answer.code == 2 and "hunter22" not in answer.err
    assert text.replace("ID", uuid) in answer.err


def test_several_flows_are_reverted_and_resumed(wbengine: Command) -> None:
    flows = [failed(wbengine, *KEEP, order=order) for order in (1, 2)]
    reverted_flow = failed(wbengine, order=3)
    resumed = wbengine("flow", "resume", reverted_flow, reverted_flow[:12], flows[0], *KEEP)
    assert resumed.code == 1 and "has already ended in REVERTED; to run it again" in resumed.out
    reverted = wbengine("flow", "revert", "--state", "FAILURE", "--yes", "--json")
    assert reverted.code == 0 and {*reverted.json["flows"]} == {*flows}
    listed = wbengine("flow", "list", "--json").json["flows"]
    assert {row["state"] for row in listed} == {"REVERTED"}
