"""Measurements and targets of `tools/bench --stores`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tools import _stores
from wbengine.persistence import backends


def test_a_flow_is_measured_and_resumed(tmp_path: Path) -> None:
    what: dict[str, Any] = {
        "package": "wbengine",
        "conf": {"connection": "dir", "path": str(tmp_path)},
        "shape": "chain",
        "tasks": 3,
        "options": {"durability": "batch"},
    }
    assert _stores.measure(what).keys() == {"load", "run", "all", "peak_mb"}
    assert _stores.measure({**what, "again": True}).keys() == {"read", "resume", "peak_mb"}


def test_flows_of_three_steps_are_measured(tmp_path: Path) -> None:
    what = {
        "package": "wbengine",
        "conf": {"connection": "dir", "path": str(tmp_path)},
        "shape": "flows",
        "tasks": 4,
        "options": {"durability": "each"},
    }
    assert _stores.measure(what)["all"] > 0
    with backends.backend(what["conf"]) as backend, backend.get_connection() as connection:
        assert [dict(row.counts) for row in connection.list_flows().flows] == [{"SUCCESS": 3}] * 4


@pytest.mark.parametrize(("ours", "good"), [(500.0, True), (499.0, False)], ids=["met", "missed"])
def test_store_rate_is_judged_against_dbos(
    ours: float, good: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = {("wbengine", "sqlite", "each"): ours, ("dbos", "sqlite", ""): 100.0}
    assert _stores._are_targets_met(rates, None, "flows") is good
    assert "times DBOS (at least 5)" in capsys.readouterr().out
