"""`tools/bench`, small and without other libraries."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support import tools

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc"),
    pytest.mark.timeout(300),
]


@pytest.mark.slow
def test_bench_runs_cases_and_writes_reports(tmp_path: Path) -> None:
    files = ("--json", str(tmp_path / "new" / "b.json"), "--html", str(tmp_path / "b.html"))
    chosen = ("--cases", "wide,local,idle", "--systems", "wbengine", "--brokers", "filesystem")
    small = ("--divide", "100", "--repeat", "1", "--tasks", "10", "--idle", "1")
    done = tools.run("bench", *files, *chosen, *small, "--folder", tmp_path)
    data = json.loads((tmp_path / "new" / "b.json").read_text(encoding="utf-8"))
    cells = {(one["medium"], one["case"]): one for one in data["cells"]}
    assert {key: one["tasks"] for key, one in cells.items()} == {
        ("filesystem", "wide"): 20,
        ("serial", "wide"): 10,
        ("serial", "linear"): 10,
        ("serial", "map"): 100,
        ("serial", "parked"): 10,
        ("parallel", "wide"): 10,
        ("parallel", "linear"): 10,
    }
    assert all(len(one["seconds"]) == 1 and "problems" not in one for one in cells.values())
    assert [(one["medium"], one["processes"]) for one in data["idle"]] == [("filesystem", 1)]
    assert data["checks"] == []
    assert "*Folder*" in done.stdout and "Measured on " in done.stdout
    assert "filesystem, wbengine, 1 of 1, wide: " in done.stderr
    assert "<svg" in (tmp_path / "b.html").read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.html", "new"]


def test_timeline_attributes_hops_of_a_real_chain(tmp_path: Path) -> None:
    file = tmp_path / "b.json"
    files = ("--json", file, "--html", tmp_path / "b.html", "--folder", tmp_path)
    small = ("--brokers", "filesystem", "--divide", "100", "--repeat", "1")
    done = tools.run("bench", "--timeline", *files, *small)
    (hop,) = json.loads(file.read_text(encoding="utf-8"))["timelines"]
    assert hop["hops"] == 5 * 9 and 0 < hop["hop"] <= hop["median"] and hop["limit"] > 0
    assert hop["explained"] > 0.5
    both = {"broker", "encode", "decode", "decisions", "hand-over between threads"}
    assert both | {"run loop and records"} <= {*hop["parts"]["engine"]}
    assert both | {"task"} <= {*hop["parts"]["worker"]}
    assert "µs of a hop, Folder" in done.stdout
