"""Jobs that a board in a database claims although it fails before the end of the call."""

from __future__ import annotations

from typing import Any

import pytest

from wbengine import exceptions
from wbengine.jobs.backends import impl_memory


@pytest.fixture
def board() -> impl_memory.MemoryJobBoard:
    board = impl_memory.MemoryJobBoard("board")
    board.connect()
    return board


def fail(*_: Any) -> Any:
    raise exceptions.JobFailure("the connection was lost")


def test_jobs_of_the_first_queue_are_returned_if_the_store_fails_afterwards(
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
