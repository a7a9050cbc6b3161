"""Tags with types in commands and on pages."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command
from wbengine import engines, task
from wbengine.dashboard._listings import FlowFilter
from wbengine.patterns import linear_flow
from wbengine.persistence import backends
from wbengine.views import redaction


@task.task
def tag(self: task.Task) -> None:
    assert self.request is not None
    self.request.tag(paid=True, due=dt.datetime(2026, 12, 1, tzinfo=dt.UTC), password="horse")


@pytest.fixture
def words(home: Path) -> tuple[str, ...]:
    uri = f"sqlite:///{home}/flows.db"
    with backends.backend(uri) as backend:
        for amount in (50, 150.5):
            flow = linear_flow.Flow(f"order {amount}").add(tag())
            engines.run(flow, backend=backend, tags={"amount": amount})
    return ("--persistence", uri)


def test_tags_are_compared_and_printed(wbengine: Command, words: tuple[str, ...]) -> None:
    def names(*conditions: str) -> list[str]:
        options = [word for condition in conditions for word in ("--tag", condition)]
        listed = json.loads(wbengine("flow", "list", *words, *options, "--json").out)["flows"]
        return [flow["name"] for flow in listed]

    assert names("amount>100") == names("amount=150.5") == ["order 150.5"]
    assert names("amount>10", "amount<=50", "paid=true") == ["order 50"]
    assert len(names("due<2026-12-02")) == 2 and names("due<2026-12-01") == []
    (flow,) = json.loads(wbengine("flow", "list", *words, "--tag", "amount>99", "--json").out)[
        "flows"
    ]
    assert flow["tags"] == {
        "amount": 150.5, "paid": True, "due": "2026-12-01T00:00:00+00:00", "password": "***",
    }  # fmt: skip
    shown = wbengine("flow", "show", flow["uuid"], *words).out
    assert "paid=true" in shown and "due=2026-12-01T00:00:00+00:00" in shown
    assert "amount=150.5" in wbengine("flow", "list", *words).out


def test_comparison_selects_flows_of_other_commands(
    wbengine: Command, words: tuple[str, ...]
) -> None:
    result = wbengine("flow", "delete", "--tag", "amount>100", "--yes", *words)
    assert result.code == 0, result.error
    assert len(json.loads(wbengine("flow", "list", *words, "--json").out)["flows"]) == 1


def test_commands_set_tags_of_all_types(wbengine: Command, home: Path) -> None:
    words = ("--persistence", f"sqlite:///{home}/flows.db")
    options = ("--tag", "amount:=120.5", "--tag", "paid:=true", "--tag", "due:=2026-12-01")
    run = wbengine(
        "flow", "submit", "tests.cli.shop:order", "--inputs", '{"n": 1}', *options, *words
    )
    assert run.code == 0, run.error
    uuid = run.out.split()[-1]

    def found(condition: str) -> bool:
        listed = wbengine("flow", "list", *words, "--tag", condition, "--json").out
        return [flow["uuid"] for flow in json.loads(listed)["flows"]] == [uuid]

    assert found("amount>100") and found("paid=true") and found("due<2026-12-02")
    changes = ("--set", "count:=7", "--set", "done:=false", "--set", "end:=2027-01-01T12:00Z")
    assert wbengine("flow", "tag", uuid, *changes, *words).code == 0
    assert found("count<8") and found("done=false") and found("end>2027-01-01")
    text = wbengine("flow", "tag", uuid, "--set", "count=8", *words)
    assert text.code == 2 and "tag count is a number, and '8' is a text" in text.error
    assert "count:=8" in text.error and found("count<8")
    assert wbengine("flow", "tag", uuid, "--remove", "count", "--set", "count=8", *words).code == 0
    assert found("count=8") and not found("count<9")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("amount:=much", "a number or a time"),
        ("a b:=1", "the key of a tag"),
        (":=1", "the key"),
        ("amount:=9007199254740993", "a whole number of at most 2**53"),
        ("amount:=1e400", "a finite number"),
        ("amount:=1_000", "a number or a time"),
        ("amount:=007", "a number or a time"),
    ],
)
def test_invalid_tag_is_refused(wbengine: Command, option: str, message: str) -> None:
    result = wbengine("flow", "tag", "3f2a9c", "--set", option)
    assert result.code == 2 and message in result.error


@pytest.mark.parametrize(
    ("option", "message"),
    [("amount>x", "a number or a time"), ("a b=1", "the key of a tag"), ("x", "team=billing")],
)
def test_invalid_condition_is_refused(wbengine: Command, option: str, message: str) -> None:
    result = wbengine("flow", "list", "--tag", option)
    assert result.code == 2 and message in result.error


def test_comparison_is_refused_at_submission(wbengine: Command) -> None:
    result = wbengine("flow", "run", "tests.cli.shop:order", "--tag", "amount>100")
    assert result.code == 2 and "must be a tag such as team=billing" in result.error


def test_search_field_of_dashboard_compares_tags(words: tuple[str, ...]) -> None:
    def found(text: str) -> list[Any]:
        with (
            backends.backend(words[1]) as backend,
            backend.get_connection() as connection,
        ):
            view = FlowFilter(find=text).read(connection, redaction.Redactor())
            return [row.name for row in view.flows]

    assert found("amount > 100") == found("amount=150.5") == ["order 150.5"]
    assert found("order 5") == found("amount <= 50") == ["order 50"]
