"""Small versions of `tools/chaos`, which injects faults into workers, engines and brokers."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import python, servers, tools
from tests.support.waiting import until
from tools import _servers

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="it hurts by ways of Linux's own"),
]

#: Longer than an undisturbed worker can be silent on a busy machine.
BRIEFLY = ("--expiry", "3")


def _chaos(folder: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    """Run `tools/chaos`, check its exit code and return its figures."""
    if "redis" in arguments and _servers.find("redis") is None:
        servers.skip_or_fail(_servers.reason(["redis"]))
    file = folder / "figures"
    tools.run("chaos", "--json", file, *arguments, code=code)
    data: dict[str, Any] = json.loads(file.read_text())
    return data


@pytest.mark.slow
def test_no_task_is_lost_under_random_faults_on_folders(tmp_path: Path) -> None:
    report = _chaos(tmp_path, "--minutes", "0.07", "--seed", "4", *BRIEFLY)
    assert report["flows"] > 0 and report["tasks"] > 0 and report["faults"]
    assert report["lost"] == report["stuck"] == report["wrong"] == 0


@pytest.mark.slow
def test_no_task_runs_twice_when_workers_on_redis_are_killed(tmp_path: Path) -> None:
    report = _chaos(tmp_path, "--transport", "redis", "--kills", "8", "--tasks", "160", *BRIEFLY)
    assert report["faults"] == {"kill worker": 8}
    assert report["tasks"] >= 140
    assert report["WorkerLost never begun"] <= report["WorkerLost"]
    assert report["most runs of one epoch"] == 1


@pytest.mark.slow
def test_submitted_flows_end_once_when_processes_are_killed(tmp_path: Path) -> None:
    """Each flow ends once, and no saved task runs again."""
    seed = str(random.randrange(1_000_000))
    arguments = ("--transport", "redis", "--flows", "60", "--kills", "6", "--seed", seed)
    report = _chaos(tmp_path, *arguments)
    assert report["flows"] == 60 and report["runs"] >= 300
    assert sum(report["kills"].values()) == 6


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["filesystem", "redis"])
def test_submitted_workflows_end_once_when_processes_are_killed(
    tmp_path: Path, transport: str
) -> None:
    """Each step has one result, and the steps of failed workflows are reverted in order."""
    seed = str(random.randrange(1_000_000))
    arguments = ("--transport", transport, "--flows", "40", "--kills", "6", "--seed", seed)
    report = _chaos(tmp_path, *arguments, "--workflows")
    assert report["flows"] == 40 and report["runs"] >= 400
    assert sum(report["kills"].values()) == 6


@pytest.mark.slow
def test_workflows_that_other_processes_retry_end_once_for_each_retry(
    tmp_path: Path,
) -> None:
    seed = str(random.randrange(1_000_000))
    arguments = ("--transport", "redis", "--flows", "40", "--kills", "8", "--seed", seed)
    report = _chaos(tmp_path, *arguments, "--workflows", "--requests")
    assert report["flows"] == 40 and sum(report["kills"].values()) == 8
    assert report["retries"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--in-process"]], ids=["workers", "in-process"])
def test_complete_orders_are_undone_once_when_processes_are_killed(
    tmp_path: Path, options: list[str]
) -> None:
    """One command reverts four of five orders, in reverse order; the others stay complete."""
    seed = str(random.randrange(1_000_000))
    arguments = ("--flows", "30", "--kills", "6", "--seed", seed, "--orders", *options)
    report = _chaos(tmp_path, *arguments)
    assert (report["undone"], report["missed"], report["twice"]) == (24 * 6, 0, 0)
    assert sum(report["kills"].values()) == 6


@pytest.mark.slow
def test_no_task_is_lost_when_a_fleet_is_upgraded_and_downgraded(tmp_path: Path) -> None:
    arguments = ("--upgrade", "--kills", "13", "--tasks", "400", "--transport", "redis")
    report = _chaos(tmp_path, *arguments)
    assert report["notes"]["requests by format"].keys() == {"1", "2"}
    assert report["notes"]["tasks by build"].keys() == {"first", "second"}
    assert report["most runs of one epoch"] == 1


@pytest.mark.slow
def test_requests_of_another_release_wait_for_workers_that_read_them(tmp_path: Path) -> None:
    arguments = ("--upgrade", "--skip-release", "--kills", "4", "--tasks", "200")
    report = _chaos(tmp_path, *arguments)
    assert report["notes"]["tasks by build"].keys() == {"later"}


@pytest.mark.slow
def test_chaos_tool_finds_requests_that_are_lost_without_checks_of_formats(tmp_path: Path) -> None:
    arguments = ("--upgrade", "--without-checks", "--patience", "15")
    report = _chaos(tmp_path, *arguments, "--kills", "2", "--tasks", "100", code=1)
    assert report["stuck"] > 0


@pytest.mark.slow
def test_chaos_tool_finds_lost_tasks_of_taskflow(tmp_path: Path) -> None:
    """TaskFlow loses tasks when its workers are killed."""
    arguments = ("--engine", "taskflow", "--transport", "redis", "--patience", "4")
    report = _chaos(tmp_path, *arguments, "--kills", "6", "--tasks", "80", code=1)
    assert report["lost"] + report["stuck"] + report["wrong"] > 0


@pytest.mark.slow
def test_killed_chaos_tool_leaves_no_process_running(tmp_path: Path) -> None:
    """Its child processes end with the tool."""
    arguments = ("--here", "--flows", "4", "--kills", "1")
    with open(tmp_path / "said", "wb") as output:
        tool = python.start(
            [str(tools.FOLDER / "chaos"), *arguments],
            real=True,
            env={**os.environ, "TMPDIR": str(tmp_path), python.VARIABLE: ""},
            stdout=output,
            stderr=output,
        )
    try:
        children = psutil.Process(tool.pid).children
        until(lambda: len(children(recursive=True)) >= 7)
        started = children(recursive=True)
    finally:
        tool.kill()
        tool.wait()
    # A zombie has ended; the init process of a container may collect it late.
    left = [each for each in psutil.wait_procs(started, timeout=60)[1] if not is_zombie(each)]
    for process in left:
        process.kill()
    assert left == []


def is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
