"""Workers, engines and brokers are hurt in all ways: nothing is lost, and nothing runs twice.

These are small versions of `tools/chaos`, which does the same on all brokers and for longer.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import servers, tools
from tests.support.waiting import until
from tools import _servers

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="it hurts by ways of Linux's own"),
    pytest.mark.timeout(300),
]

#: More than a busy machine lets a worker be silent that nobody hurts.
BRIEFLY = ("--expiry", "3")


def _chaos(folder: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    """The figures of a run, which has to end so."""
    if "redis" in arguments and _servers.find("redis") is None:
        servers.skip_or_fail(_servers.reason(["redis"]))
    file = folder / "figures"
    tools.run("chaos", "--json", file, *arguments, code=code)
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_all_kinds_of_faults_on_folders(tmp_path: Path) -> None:
    found = _chaos(tmp_path, "--minutes", "0.07", "--seed", "4", *BRIEFLY)
    assert found["flows"] > 0 and found["tasks"] > 0 and found["faults"]
    assert found["lost"] == found["stuck"] == found["wrong"] == 0


@pytest.mark.slow
def test_kills_of_workers_on_redis(tmp_path: Path) -> None:
    found = _chaos(tmp_path, "--transport", "redis", "--kills", "8", "--tasks", "160", *BRIEFLY)
    assert found["faults"] == {"kill worker": 8}
    assert found["tasks"] >= 140
    assert found["most runs of one epoch"] == 1


def test_kills_of_all_that_has_to_do_with_submitted_flows(tmp_path: Path) -> None:
    """Each ends once, and no task that is saved runs again."""
    seed = str(random.randrange(1_000_000))
    arguments = ("--transport", "redis", "--flows", "60", "--kills", "6", "--seed", seed)
    found = _chaos(tmp_path, *arguments)
    assert found["flows"] == 60 and found["runs"] >= 300
    assert sum(found["kills"].values()) == 6


@pytest.mark.slow
def test_the_control_fails(tmp_path: Path) -> None:
    """What is known to lose tasks is seen to lose them."""
    arguments = ("--engine", "taskflow", "--transport", "redis", "--patience", "4")
    found = _chaos(tmp_path, *arguments, "--kills", "6", "--tasks", "80", code=1)
    assert found["lost"] + found["stuck"] + found["wrong"] > 0


def test_killed_tool_leaves_no_process_running(tmp_path: Path) -> None:
    """What it has started ends with it."""
    arguments = ("--here", "--flows", "4", "--kills", "1")
    with open(tmp_path / "said", "wb") as said:
        tool = subprocess.Popen(
            [sys.executable, str(tools.FOLDER / "chaos"), *arguments],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdout=said,
            stderr=said,
        )
    try:
        children = psutil.Process(tool.pid).children
        until(lambda: len(children()) >= 6)
        started = children(recursive=True)
    finally:
        tool.kill()
        tool.wait()
    left = psutil.wait_procs(started, timeout=60)[1]
    for process in left:
        process.kill()
    assert left == []
