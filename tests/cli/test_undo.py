"""`wbengine flow revert` of complete flows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli import shop
from tests.cli.conftest import Command
from wbengine import engines, operations
from wbengine.persistence import base
from wbengine.testing import run_submitted

UUID = "ba4c0000-0000-4000-8000-00000000000"


@pytest.fixture
def complete(wbengine: Command, quiet_store: None) -> tuple[str, str]:
    """Return the uuids of two flows in SUCCESS; the second has an irreversible task."""
    for number, factory in enumerate(("order", "posted")):
        path = f"tests.cli.shop:{factory}"
        words = ("--flow-id", f"{UUID}{number}", "--tag", "release=42")
        assert wbengine("flow", "run", path, *words).code == 0
    Path("done").unlink()
    return f"{UUID}0", f"{UUID}1"


def test_dry_run_lists_irreversible_tasks(wbengine: Command, complete: tuple[str, str]) -> None:
    answer = wbengine("flow", "revert", complete[1], "--dry-run", "--json")
    assert (answer.json["revert"], answer.json["irreversible"]) == (["pay"], ["letter"])
    answer = wbengine("flow", "revert", complete[1], "--dry-run")
    assert "irreversible  letter" in answer.out
    assert not Path("done").exists()


def test_irreversible_flow_is_reverted_in_part(
    wbengine: Command, complete: tuple[str, str]
) -> None:
    answer = wbengine("flow", "revert", complete[1], "--yes")
    assert answer.code == 1 and "cannot be undone; to undo all other tasks, use --partial" in (
        answer.err
    )
    assert wbengine("flow", "revert", complete[1], "--yes", "--partial").code == 0
    assert Path("done").read_text() == "-pay\n"
    assert "partial, irreversible: letter" in wbengine("flow", "show", complete[1]).out


def test_filter_selects_complete_flows_only_by_their_state(
    wbengine: Command, complete: tuple[str, str]
) -> None:
    answer = wbengine("flow", "revert", "--tag", "release=42", "--dry-run", "--json")
    assert answer.json["flows"] == []
    tagged = ("flow", "revert", "--tag", "release=42", "--state", "SUCCESS")
    assert len(wbengine(*tagged, "--dry-run", "--json").json["flows"]) == 2
    answer = wbengine(*tagged, "--yes")
    assert answer.code == 1 and "'letter' cannot be undone" in answer.out
    assert Path("done").read_text().split() == ["-send", "-pack", "-pay", "-reserve"]


def test_dry_run_counts_complete_flows_that_are_refused(
    wbengine: Command, complete: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WBENGINE_QUIET")
    tagged = ("flow", "revert", "--tag", "release=42", "--state", "SUCCESS", "--dry-run")
    refused = f"would refuse 1 complete flows: {complete[1]}: 'letter' cannot be undone"
    assert refused in wbengine(*tagged).err
    assert "refuse" not in wbengine(*tagged, "--partial").err


def test_flow_is_not_undone_after_its_time(
    wbengine: Command, quiet_store: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WBENGINE_QUIET")
    uuid = f"{UUID}2"
    words = ("--flow-id", uuid, "--undo-until", "0.000001")
    assert wbengine("flow", "run", "tests.cli.shop:order", *words).code == 0
    answer = wbengine("flow", "revert", uuid, "--dry-run", "--json")
    assert answer.json["revert"] and answer.json["undo_expired"].startswith("20")
    answer = wbengine("flow", "revert", uuid, "--dry-run")
    assert "would not be reverted: it could be undone until 20" in answer.err
    answer = wbengine("flow", "revert", uuid, "--yes", "--partial")
    assert answer.code == 1 and "is complete: it could be undone until 20" in answer.err


def test_flow_show_prints_until_when_the_flow_can_be_undone(
    wbengine: Command, quiet_store: None
) -> None:
    for number, duration, verb in ((2, "0.000001", "could"), (3, "30d", "can")):
        uuid = f"{UUID}{number}"
        words = ("--flow-id", uuid, "--undo-until", duration)
        assert wbengine("flow", "run", "tests.cli.shop:order", *words).code == 0
        assert f"{verb} be undone until 20" in wbengine("flow", "show", uuid).out
        assert wbengine("flow", "show", uuid, "--json").json["undo_until"].startswith("20")
    assert wbengine("flow", "revert", uuid, "--yes").code == 0
    answer = wbengine("flow", "show", uuid, "--json").json
    assert (answer["undo_until"], answer["undo"]["outcome"]) == (None, "complete")


def test_dry_run_lists_unfinished_flows_that_use_results(
    wbengine: Command, store: base.Backend
) -> None:
    uuid = engines.submit(shop.order, backend=store).id
    run_submitted(store)
    fork = operations.fork(store, uuid, start="send").uuid
    answer = wbengine("flow", "revert", uuid, "--dry-run", "--partial")
    assert "used by fork in PENDING" in answer.out and fork in answer.out
    assert f"would not be reverted: its fork {fork}" in answer.err
    answer = wbengine("flow", "revert", uuid, "--dry-run", "--json")
    (user,) = answer.json["used_by"]
    assert user == {"flow": fork, "kind": "fork", "name": "order", "state": "PENDING"}
    assert fork in wbengine("flow", "show", uuid).out
    assert wbengine("flow", "show", uuid, "--json").json["used_by"] == [user]
    run_submitted(store)
    answer = wbengine("flow", "revert", uuid, "--dry-run", "--json")
    assert (answer.json["used_by"], answer.err) == ([], "")


def test_prune_names_flows_that_can_be_undone(
    wbengine: Command, quiet_store: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WBENGINE_QUIET")
    uuid = f"{UUID}3"
    words = ("--flow-id", uuid, "--undo-until", "30d")
    assert wbengine("flow", "run", "tests.cli.shop:order", *words).code == 0
    prune = ("flow", "prune", "--older-than", "0s", "--yes")
    answer = wbengine(*prune)
    assert f"kept {uuid} (order): it can be undone until 20" in answer.err
    assert "deleted 0 flows" in answer.err
    assert uuid in wbengine(*prune, "--undoable").out
    assert wbengine("flow", "show", uuid).code != 0


def test_refused_undos_of_many_flows_are_listed(wbengine: Command, store: base.Backend) -> None:
    plain, refused = (
        engines.submit(factory, backend=store).id for factory in (shop.order, shop.posted)
    )
    run_submitted(store)
    answer = wbengine("flow", "revert", "--state", "SUCCESS", "--yes", "--json")
    assert set(answer.json["flows"]) == {plain, refused}
    show = ("bulk", "show", answer.json["bulk"])
    assert wbengine(*show).code == 0
    run_submitted(store)
    answer = wbengine(*show)
    assert answer.code == 1 and f"{refused}  Flow {refused} is complete: 'letter'" in answer.out
    ((uuid, reason),) = (each.values() for each in wbengine(*show, "--json").json["refused"])
    assert uuid == refused and "'letter' cannot be undone" in reason
