"""What `tools/bench --stores` measures, and how it judges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tools import _stores

GOOD = {
    ("taskflow", "sqlite", ""): 30.0,
    ("wbengine", "sqlite", "batch"): 3000.0,
    ("wbengine", "sqlite", "each"): 150.0,
    ("wbengine", "dir", "batch"): 3000.0,
    ("wbengine", "dir", "each"): 150.0,
}


def test_what_is_promised_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert _stores._judged(GOOD, 30.0)
    told = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in told] == ["passed"] * 4


@pytest.mark.parametrize("level", ["batch", "each"])
@pytest.mark.parametrize("kind", ["sqlite", "dir"])
def test_what_is_slower_fails(kind: str, level: str, capsys: pytest.CaptureFixture[str]) -> None:
    rates = {**GOOD, ("wbengine", kind, level): GOOD["wbengine", kind, level] - 1}
    assert not _stores._judged(rates, 30.0)
    failed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAILED")]
    assert len(failed) == 1 and failed[0].startswith(f"FAILED: {kind}, {level}")


def test_without_taskflow_nothing_is_said_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert _stores._judged({("wbengine", "dir", "batch"): 9000.0}, None)
    assert "not compared with TaskFlow" in capsys.readouterr().out


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
