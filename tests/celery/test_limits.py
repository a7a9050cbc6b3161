"""Time limits and revocation by Celery clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.celery.conftest import Bed, Beds
from tests.celery.journal import lines


def check_soft(told: dict[str, Any]) -> None:
    error = told["soft"]["error"]
    assert told["soft"]["state"] == "FAILURE"
    assert (error["module"], error["type"]) == ("billiard.exceptions", "SoftTimeLimitExceeded")
    assert ", in rest\n" in told["soft"]["traceback"]  # the exception was raised within the task
    assert told["gentle"]["value"] == "cleaned up after SoftTimeLimitExceeded"
    assert told["in time"]["value"] == 0.1


def test_soft_time_limit_is_raised_in_task(killing: Bed, protocol: int, tmp_path: Path) -> None:
    """The task can catch the exception."""
    check_soft(killing.using(task_protocol=protocol).call("limited", str(tmp_path)))


@pytest.mark.parametrize("kind", ["redis"])
def test_soft_time_limit_is_raised_in_thread(beds: Beds, kind: str, tmp_path: Path) -> None:
    """Celery's own thread pool supports no time limits."""
    check_soft(beds.get("wbengine", kind, "redis").call("limited", str(tmp_path)))


@pytest.mark.parametrize("pool", ["threads", "processes"])
def test_time_limits_of_coroutine_are_enforced(beds: Beds, pool: str) -> None:
    """The soft limit is raised at the `await`, as in other tasks."""
    bed = beds.get("wbengine", "redis", "redis", pool)
    answer = bed.run("wait", 90, soft_time_limit=0.5, time_limit=60)
    error = answer["error"]
    assert answer["state"] == "FAILURE"
    assert (error["module"], error["type"]) == ("billiard.exceptions", "SoftTimeLimitExceeded")
    assert "await asyncio.sleep(seconds)" in answer["traceback"]
    answer = bed.run("wait", 90, True, soft_time_limit=0.5)
    assert answer["value"] == "cleaned up after SoftTimeLimitExceeded"
    answer = bed.run("wait", 90, time_limit=0.3)
    assert answer["error"]["type"] == "TimeLimitExceeded"
    assert bed.run("wait", 0.01, soft_time_limit=60)["value"] == "was never stopped"


def test_hard_time_limit_kills_process_of_task(killing: Bed, tmp_path: Path) -> None:
    """The task ignores the soft limit.  The worker continues."""
    path = tmp_path / "path"
    answer = killing.call("stubborn", str(path))
    for each in answer.values():
        assert each["state"] == "FAILURE"
        error = each["error"]
        assert (error["module"], error["type"]) == ("billiard.exceptions", "TimeLimitExceeded")
    assert lines(path) == ["begins", "shrugs at SoftTimeLimitExceeded"]
    assert killing.run("add", 1, 2)["value"] == 3


def test_task_revoked_before_it_starts_is_not_run(bed: Bed, tmp_path: Path) -> None:
    path = tmp_path / "path"
    answer = bed.call("revoked", str(path))
    for name in ("waits", "later"):
        assert answer[name]["state"] == "REVOKED", answer
        assert answer[name]["error"]["type"] == "TaskRevokedError"
        assert "revoked" in answer[name]["error"]["text"]
    assert answer["runs"]["state"] == "SUCCESS"
    assert lines(path) == ["runs"]


@pytest.mark.parametrize("options", [{"terminate": True}, {"terminate": True, "signal": "SIGKILL"}])
def test_running_task_revoked_with_terminate_is_stopped(
    killing: Bed, options: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "path"
    answer = killing.call("terminated", str(path), **options)
    assert answer["state"] == "REVOKED"
    assert answer["error"]["type"] == "TaskRevokedError"
    assert "terminated" in answer["error"]["text"]
    assert len(lines(path)) == 1
    assert killing.run("add", 1, 2)["value"] == 3


def test_running_task_revoked_without_terminate_continues(killing: Bed, tmp_path: Path) -> None:
    answer = killing.call("terminated", str(tmp_path / "path"))
    assert answer["before"]["active"] == 1
    assert answer["before"]["state"] in ("PENDING", "STARTED")
    assert answer["state"] == "REVOKED"
