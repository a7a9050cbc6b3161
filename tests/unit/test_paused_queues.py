"""Flows of a paused queue whose jobs were claimed, but did not begin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import signalled
from wbengine import engines, states
from wbengine.jobs import _queues
from wbengine.jobs import base as jobs
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import backends as stores
from wbengine.persistence.backends import _sql as sql
from wbengine.persistence.backends._sql import tables


@pytest.fixture
def store(tmp_path: Path) -> Iterator[sql.SQLBackend]:
    with stores.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        assert isinstance(backend, sql.SQLBackend)
        yield backend


@pytest.fixture
def board(store: sql.SQLBackend) -> impl_sql.SQLJobBoard:
    board = impl_sql.SQLJobBoard("board", persistence=store)
    board.connect()
    return board


def release(store: sql.SQLBackend, how: str) -> None:
    """Let another conductor take a job, and let its claim end."""
    other = impl_sql.SQLJobBoard("other", persistence=store)
    other.connect()
    with jobs.claims_expiring_after(60):
        (job,) = other.take("you", 1)
    if how == "abandoned":
        other.abandon(job, "you")
        return
    with store.engine.begin() as connection:
        claimed = tables.JOBS.update().where(tables.JOBS.c.uuid == job.uuid)
        connection.execute(claimed.values(owner_until=1.0))


@pytest.mark.parametrize("how", ["abandoned", "expires"])
def test_flow_that_was_only_claimed_does_not_begin_in_a_paused_queue(
    how: str, store: sql.SQLBackend, board: impl_sql.SQLJobBoard
) -> None:
    handles = engines.submit_many(signalled.flow, [{}] * 3, backend=store)
    release(store, how)
    queues = _queues.JobQueues(store)
    queues.pause("*")
    assert not board.take("me", 3)
    handles[0].signal("approved", 1)
    assert not board.take("me", 3)
    queues.resume("*")
    assert [job.uuid for job in board.take("me", 3)] == [handle.id for handle in handles]


@pytest.mark.parametrize("how", ["abandoned", "expires"])
def test_flow_that_has_begun_continues_in_a_paused_queue(
    how: str, store: sql.SQLBackend, board: impl_sql.SQLJobBoard
) -> None:
    begun, _ = engines.submit_many(signalled.flow, [{}] * 2, backend=store)
    release(store, how)
    with store.engine.begin() as connection:
        flow = tables.FLOWS.update().where(tables.FLOWS.c.uuid == begun.id)
        connection.execute(flow.values(state=states.SUSPENDED))
    (job,) = board.take("me", 1)
    board.abandon(job, "me")
    _queues.JobQueues(store).pause("*")
    assert [job.uuid for job in board.take("me", 2)] == [begun.id]
