"""Commands that show parents and children."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.support import child_flows
from wbengine import engines, testing


@pytest.fixture
def parent(home: Path) -> str:
    uri = f"sqlite:///{home}/flows.db"
    (home / "wbengine.toml").write_text(f'persistence = "{uri}"\n')
    given = {"folder": str(home), "items": ["tea"] * 22}
    handle = engines.submit(child_flows.order_and_wait, inputs=given, backend=uri)
    testing.run_submitted(uri)
    return handle.id


@pytest.mark.slow
def test_flow_show_contains_parent_and_children(wbengine: Command, parent: str) -> None:
    shown = wbengine("flow", "show", parent)
    assert "22 SUSPENDED" in shown.out and shown.out.count("1 of 2 steps") == 20
    assert f"wbengine flow list --parent {parent}" in shown.out + shown.err
    document = wbengine("flow", "show", parent, "--json").json
    assert document["parent"] is None and document["children"] == {"SUSPENDED": 22}
    child = wbengine("flow", "list", "--parent", parent, "--json").json["flows"][0]["uuid"]
    assert wbengine("flow", "show", child, "--json").json["parent"] == parent


@pytest.mark.slow
def test_flow_list_shows_children_below_their_parent(wbengine: Command, parent: str) -> None:
    (root,) = wbengine("flow", "list", "--tree", "--json").json["flows"]
    assert root["uuid"] == parent and root["children"] == {"SUSPENDED": 22}
    assert len(root["child_flows"]) == 20
    shown = wbengine("flow", "list", "--tree")
    assert "  tests.support.child_flows.wait" in shown.out
    assert "2 more children" in shown.out + shown.err


@pytest.mark.slow
def test_flow_list_pages_through_children(wbengine: Command, parent: str) -> None:
    first = wbengine("flow", "list", "--parent", parent, "--limit", "15", "--json").json
    second = wbengine("flow", "list", "--parent", parent, "--after", first["after"], "--json").json
    uuids = {flow["uuid"] for page in (first, second) for flow in page["flows"]}
    assert len(uuids) == 22 and second["after"] is None


@pytest.mark.slow
@pytest.mark.parametrize("words", ["revert", "retry", "fork --from failed"])
def test_commands_that_run_flows_again_select_parents(
    wbengine: Command, parent: str, home: Path, words: str
) -> None:
    wbengine("flow", "cancel", parent)
    testing.run_submitted(f"sqlite:///{home}/flows.db")
    command = ("flow", *words.split(), "--state", "REVERTED", "--dry-run")
    assert f"order_and_wait' ({parent}, CANCELLED)" in wbengine(*command).out
