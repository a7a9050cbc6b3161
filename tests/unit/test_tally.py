"""Summary lines at the end of a test run."""

from __future__ import annotations

import json

import pytest

from tests.support import tally


def test_tally_combines_reports_of_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: dict[str, dict[str, str]] = {
        "backends": {},
        "ledgers": {"sqlite": "3.40"},
        "brokers": {"redis": "7.0"},
    }
    monkeypatch.setattr(tally, "_KINDS", kinds)
    monkeypatch.setattr(tally, "flows", {("a", "serial"), ("b", "serial")})
    other: dict[str, object] = {
        "backends": {"dir": ""},
        "ledgers": {"memory": ""},
        "brokers": {"redis": "7.0"},
    }
    other["flows"] = [["a", "serial"], ["a", "kept"]]
    monkeypatch.setattr(tally, "waiting", {"tests/unit/test_a.py::test_b"})
    monkeypatch.setattr(tally, "shared", {"tests/unit/test_a.py::test_e"})
    other["shared"] = ["tests/unit/test_a.py::test_f"]
    other["waiting"] = ["tests/unit/test_a.py::test_b", "tests/cli/test_c.py::test_d"]
    tally.add(json.loads(json.dumps(other)))
    assert tally.lines() == [
        "backends: dir",
        "ledgers: memory, sqlite 3.40",
        "brokers: redis (7.0)",
        "contract of flows: 2 flows x 2 kinds (serial, kept), 3 runs as expected",
        "slow, and in the share of this commit: 2 tests",
        "left out, slow or outside of the sample: 2 tests",
    ]
    assert tally.waiting_by_folder() == {"unit": 1, "cli": 1}
    assert json.loads(json.dumps(tally.export()))["flows"] == [
        ["a", "kept"],
        ["a", "serial"],
        ["b", "serial"],
    ]
