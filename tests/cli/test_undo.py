"""`wbengine flow revert` of complete flows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command

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
