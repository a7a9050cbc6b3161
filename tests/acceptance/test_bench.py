"""`tools/bench` as one calls it, small and without peers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import workers
from tools.benching import driving, places
from tools.benching.systems import System

BENCH = Path(__file__).parents[2] / "tools" / "bench"

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc"),
    pytest.mark.timeout(300),
]


def _bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH), "--here", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=280)


def test_all_cases_are_run_and_written(tmp_path: Path) -> None:
    files = ("--json", str(tmp_path / "new" / "b.json"), "--html", str(tmp_path / "b.html"))
    chosen = ("--cases", "wide,chain,diamond,payload,local,scale,idle", "--systems", "wbengine",
              "--brokers", "filesystem")  # fmt: skip
    small = ("--divide", "100", "--repeat", "1", "--tasks", "10", "--idle", "1")
    done = _bench(*files, *chosen, *small, "--folder", str(tmp_path))
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "new" / "b.json").read_text(encoding="utf-8"))
    cells = {(one["medium"], one["case"]): one for one in told["cells"]}
    assert {key: one["tasks"] for key, one in cells.items()} == {
        ("filesystem", "wide"): 20,
        ("filesystem", "chain"): 2,
        ("filesystem", "diamond"): 80,
        ("filesystem", "payload"): 2,
        ("serial", "wide"): 10,
        ("serial", "linear"): 10,
        ("parallel", "wide"): 10,
        ("parallel", "linear"): 10,
    }
    assert all(len(one["seconds"]) == 1 and "problems" not in one for one in cells.values())
    assert [(one["shape"], one["tasks"]) for one in told["scale"]] == [
        (shape, 10) for shape in ("unordered", "linear", "nested")
    ]
    assert [(one["medium"], one["processes"]) for one in told["idle"]] == [("filesystem", 1)]
    assert told["checks"] == []
    assert "wide, filesystem: 20 tasks" in done.stdout
    assert "filesystem, wbengine, 1 of 1, wide: " in done.stderr
    assert "<svg" in (tmp_path / "b.html").read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.html", "new"]


def test_tables_of_the_last_run_are_printed_and_written_into_a_page(tmp_path: Path) -> None:
    nothing = ("--json", str(tmp_path / "b.json"), "--scale", str(tmp_path / "s.json"))
    done = _bench("--table", *nothing)
    assert done.returncode == 0, done.stderr
    assert ".. counts\n\n====" in done.stdout
    assert done.stderr.splitlines() == [
        f"{tmp_path}/b.json is not there: run tools/bench",
        f"{tmp_path}/s.json is not there: run tools/simulate scale",
    ]
    page = tmp_path / "page.rst"
    places = "".join(
        f".. begin figures: {name}\n\nold\n\n.. end figures: {name}\n"
        for name in ("counts", "messages", "rates")
    )
    page.write_text(places, encoding="utf-8")
    done = _bench("--page", str(page), *nothing)
    assert done.returncode == 0, done.stderr
    written = page.read_text(encoding="utf-8")
    assert written.count("\nold\n") == 1
    assert "chain over Redis" in written


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--cases", "wide,tall"), "'tall' is not one of wide, chain, "),
        (("--systems", "celry"), "'celry' is not one of wbengine, "),
        (("--brokers", "serial"), "'serial' is not one of redis, amqp, filesystem"),
        (("--repeat", "0"), "'0' is not a whole number above 0"),
    ],
)
def test_wrong_usage_is_one_line(arguments: tuple[str, ...], told: str) -> None:
    done = _bench(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_system_that_cannot_be_driven_is_told(tmp_path: Path) -> None:
    nobody = System("nobody", "Nobody", "nobody", (), ("filesystem",), "", log="")
    with (
        places.Places(["filesystem"], folder=str(tmp_path)) as where,
        where.fresh("filesystem") as place,
    ):
        with pytest.raises(driving.Failed, match="No module named 'on_nobody'"):
            driving.Driver(nobody, sys.executable, place)
        assert "driver.log: ModuleNotFoundError" in places.logs(place["folder"])


def test_a_driver_that_takes_too_long_is_killed_with_its_workers(tmp_path: Path) -> None:
    ours = System("wbengine", "wbengine", "wbengine", (), ("filesystem",), "", log="")
    with (
        places.Places(["filesystem"], folder=str(tmp_path)) as where,
        where.fresh("filesystem") as place,
    ):
        driver = driving.Driver(ours, sys.executable, place)
        (worker,) = driver.workers
        with pytest.raises(driving.Failed, match="not done after 0 s"):
            driver.run("wide", {"tasks": 1_000_000}, patience=0)
        began = time.monotonic()
        driver.close()
        assert time.monotonic() - began < 60  # all of it would take longer
        workers.until(lambda: not Path(f"/proc/{worker}").exists())
