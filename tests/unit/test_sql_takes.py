"""Jobs that a board in a database claims or lists although something fails."""

from __future__ import annotations

from typing import Any

import pytest

from wbengine import exceptions
from wbengine.jobs.backends import impl_memory
from wbengine.persistence.backends._sql import tables


@pytest.fixture
def board() -> impl_memory.MemoryJobBoard:
    board = impl_memory.MemoryJobBoard("board")
    board.connect()
    return board


def fail(*_: Any) -> Any:
    raise exceptions.JobFailure("the connection was lost")


def test_jobs_of_the_first_queue_are_returned_if_the_store_fails_then(
    board: impl_memory.MemoryJobBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    board.post("x")
    board.post("y")
    monkeypatch.setattr(board, "POLL_SECONDS", 60)
    assert [job.name for job in board.take("me", 1)] == ["x"]
    monkeypatch.setattr(board, "_offer_due_jobs", fail)
    assert [job.name for job in board.take("me", 2)] == ["y"]
    with pytest.raises(exceptions.JobFailure):
        board.take("me", 1)


def test_unreadable_blocked_job_does_not_prevent_the_list_of_others(
    board: impl_memory.MemoryJobBoard,
) -> None:
    """A later version may have further priorities."""
    for name in ("x", "y"):
        board.post(name)
    for job in board.take("me", 2):
        board.block(job, "me")
    with board._store.engine.begin() as connection:
        connection.execute(tables.JOBS.update().where(tables.JOBS.c.name == "x").values(priority=9))
    assert [job.name for job in board.blocked_jobs()] == ["y"]
