"""Tags of flows: their types, comparisons, and changes after the submission."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from tests.cli.conftest import ORDER, Command
from wbengine import engines, task
from wbengine.dashboard._listings import FlowFilter
from wbengine.patterns import linear_flow
from wbengine.persistence import base
from wbengine.views import redaction


@pytest.fixture
def uuid(wbengine: Command, store_url: str) -> str:
    return str(wbengine("flow", "run", ORDER, "--quiet").json["uuid"])


def tagged(wbengine: Command, tag: str) -> list[str]:
    return [flow["uuid"] for flow in wbengine("flow", "list", "--tag", tag, "--json").json["flows"]]


def test_tags_are_set_replaced_and_removed(wbengine: Command, uuid: str) -> None:
    answer = wbengine("flow", "tag", uuid[:8], "--set", "shop=paris", "--set", "note=a=b")
    assert (answer.code, answer.out) == (0, f"order {uuid}: note=a=b, shop=paris\n")
    assert tagged(wbengine, "note=a=b") == tagged(wbengine, "shop=paris") == [uuid]
    document = wbengine(
        "flow", "tag", uuid, "--set", "shop=rome", "--remove", "note", "--remove", "none", "--json"
    ).json
    assert document == {
        "schema": "wbengine/flow-tag/1", "uuid": uuid, "tags": {"shop": "rome"},
    }  # fmt: skip
    assert (tagged(wbengine, "note=a=b"), tagged(wbengine, "shop=rome")) == ([], [uuid])
    assert wbengine("flow", "tag", uuid, "--remove", "shop").out == f"order {uuid}: no tags\n"


def test_tags_of_the_submission_are_not_changed(wbengine: Command, uuid: str) -> None:
    other = wbengine("flow", "run", ORDER, "--quiet", "--tag", "team=billing").json["uuid"]
    answer = wbengine("flow", "tag", other, "--set", "team=sales")
    assert answer.code == 2 and "tag team was set at the submission" in answer.error
    assert tagged(wbengine, "team=billing") == [other]


def test_filters_select_by_tags_before_the_change(wbengine: Command, uuid: str) -> None:
    wbengine("flow", "tag", uuid, "--set", "shop=paris")
    words = ("flow", "tag", "--tag", "shop=paris", "--set", "shop=rome")
    assert "would tag" in wbengine(*words, "--dry-run").out
    assert tagged(wbengine, "shop=paris") == [uuid]
    assert wbengine(*words, "--yes").code == 0
    assert tagged(wbengine, "shop=rome") == [uuid]


@task.task
def tag(self: task.Task) -> None:
    assert self.request is not None
    self.request.tag(paid=True, due=dt.datetime(2026, 12, 1, tzinfo=dt.UTC), password="horse")


@pytest.fixture
def orders(store: base.Backend) -> None:
    """Run two flows with tags of several types."""
    for amount in (50, 150.5):
        flow = linear_flow.Flow(f"order {amount}").add(tag())
        engines.run(flow, backend=store, tags={"amount": amount})


def test_tags_are_compared_and_printed(wbengine: Command, orders: None) -> None:
    def names(*conditions: str) -> list[str]:
        options = [word for condition in conditions for word in ("--tag", condition)]
        listed = wbengine("flow", "list", *options, "--json").json["flows"]
        return [flow["name"] for flow in listed]

    assert names("amount>100") == names("amount=150.5") == ["order 150.5"]
    assert names("amount>10", "amount<=50", "paid=true") == ["order 50"]
    assert len(names("due<2026-12-02")) == 2 and names("due<2026-12-01") == []
    (flow,) = wbengine("flow", "list", "--tag", "amount>99", "--json").json["flows"]
    assert flow["tags"] == {
        "amount": 150.5, "paid": True, "due": "2026-12-01T00:00:00+00:00", "password": "***",
    }  # fmt: skip
    shown = wbengine("flow", "show", flow["uuid"]).out
    assert "paid=true" in shown and "due=2026-12-01T00:00:00+00:00" in shown
    assert "amount=150.5" in wbengine("flow", "list").out


def test_comparison_selects_flows_of_other_commands(wbengine: Command, orders: None) -> None:
    result = wbengine("flow", "delete", "--tag", "amount>100", "--yes")
    assert result.code == 0, result.error
    assert len(wbengine("flow", "list", "--json").json["flows"]) == 1


def test_commands_set_tags_of_all_types(wbengine: Command, store_url: str) -> None:
    options = ("--tag", "amount:=120.5", "--tag", "paid:=true", "--tag", "due:=2026-12-01")
    run = wbengine("flow", "submit", ORDER, "--inputs", '{"n": 1}', *options)
    assert run.code == 0, run.error
    uuid = run.out.split()[-1]

    def found(condition: str) -> bool:
        return tagged(wbengine, condition) == [uuid]

    assert found("amount>100") and found("paid=true") and found("due<2026-12-02")
    changes = ("--set", "count:=7", "--set", "done:=false", "--set", "end:=2027-01-01T12:00Z")
    assert wbengine("flow", "tag", uuid, *changes).code == 0
    assert found("count<8") and found("done=false") and found("end>2027-01-01")
    text = wbengine("flow", "tag", uuid, "--set", "count=8")
    assert text.code == 2 and "tag count is a number, and '8' is a text" in text.error
    assert "count:=8" in text.error and found("count<8")
    assert wbengine("flow", "tag", uuid, "--remove", "count", "--set", "count=8").code == 0
    assert found("count=8") and not found("count<9")


def test_search_field_of_dashboard_compares_tags(store: base.Backend, orders: None) -> None:
    def found(text: str) -> list[Any]:
        with store.get_connection() as connection:
            view = FlowFilter(find=text).read(connection, redaction.Redactor())
            return [row.name for row in view.flows]

    assert found("amount > 100") == found("amount=150.5") == ["order 150.5"]
    assert found("order 5") == found("amount <= 50") == ["order 50"]
