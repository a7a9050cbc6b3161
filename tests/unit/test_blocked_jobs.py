"""Blocked jobs on a board outside of the store of the flows."""

from __future__ import annotations

import math

import pytest

from wbengine import exceptions
from wbengine.conductors.backends import impl_blocking, impl_executor
from wbengine.jobs.backends import impl_memory


def test_job_that_another_conductor_had_claimed_is_tried_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(impl_executor, "_BLOCKED_POLL_SECONDS", 0.0)
    board = impl_memory.MemoryJobBoard("board")
    board.connect()
    job, other = board.post("x"), board.post("y")
    conductor = impl_blocking.BlockingConductor("me", board)
    conductor._postponed |= {each.uuid: (math.inf, 0.0) for each in (job, other)}
    conductor._untried += [job, other]
    for each in board.take("another", 2):
        if each == other:
            board.consume(each, "another")
    assert conductor._take(1) == []
    board.abandon(job, "another")
    assert conductor._take(1) == [job]
    board.consume(job, "me")
    assert conductor._take(1) == []
    assert not conductor._untried and not conductor._contended


def test_job_whose_claim_failed_is_tried_later(monkeypatch: pytest.MonkeyPatch) -> None:
    board = impl_memory.MemoryJobBoard("board")
    board.connect()
    job = board.post("x")
    conductor = impl_blocking.BlockingConductor("me", board)
    conductor._postponed[job.uuid] = (math.inf, 0.0)
    conductor._untried.append(job)

    def fail(*args: object) -> None:
        raise exceptions.JobFailure("the board fails")

    with monkeypatch.context() as failing:
        failing.setattr(board, "claim", fail)
        with pytest.raises(exceptions.JobFailure):
            conductor._take(1)
    assert conductor._take(1) == [job]
