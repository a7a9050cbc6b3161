"""The search of a conductor service for flows without a job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.support import signalled
from wbengine import engines, exceptions, states
from wbengine.conductors import service as services
from wbengine.jobs.backends import impl_memory
from wbengine.persistence import _commands
from wbengine.persistence import backends as stores
from wbengine.persistence.backends import _sql as sql
from wbengine.persistence.backends._sql import rows, tables


@pytest.fixture
def store(tmp_path: Path) -> Iterator[sql.SQLBackend]:
    with stores.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        assert isinstance(backend, sql.SQLBackend)
        yield backend


@pytest.fixture
def board(store: sql.SQLBackend) -> impl_memory.MemoryJobBoard:
    board = impl_memory.MemoryJobBoard("board", persistence=store)
    board.connect()
    return board


@pytest.fixture
def service(store: sql.SQLBackend, board: impl_memory.MemoryJobBoard) -> services.ConductorService:
    return services.ConductorService(store, board=board)


def fail(*_: Any) -> Any:
    raise exceptions.JobFailure("the board is unreachable")


def test_flow_with_an_earlier_time_than_others_is_posted(
    monkeypatch: pytest.MonkeyPatch,
    store: sql.SQLBackend,
    board: impl_memory.MemoryJobBoard,
    service: services.ConductorService,
) -> None:
    posted = engines.submit(signalled.flow, backend=store, board=board)
    service._post_unposted()
    with monkeypatch.context() as patch, pytest.raises(exceptions.JobFailure):
        patch.setattr(board, "repost_all", fail)
        engines.submit(signalled.flow, backend=store, board=board)
    uuid, created = tables.FLOWS.c.uuid, tables.FLOWS.c.created
    with store.engine.begin() as connection:
        connection.execute(
            tables.FLOWS.update().where(uuid != posted.id).values(created=created - 3600)
        )
        (late,) = connection.scalars(sa.select(uuid).where(uuid != posted.id))
    service._post_unposted()
    assert board.find(late) is None
    monkeypatch.setattr(service, "_complete_at", 0.0)
    service._post_unposted()
    assert board.find(late) is not None
    assert board.job_count == 2


def test_posted_flows_are_checked_once(
    monkeypatch: pytest.MonkeyPatch,
    store: sql.SQLBackend,
    board: impl_memory.MemoryJobBoard,
    service: services.ConductorService,
) -> None:
    checked: list[str] = []
    monkeypatch.setattr(service, "_post", lambda connection, row, among: checked.append(row.uuid))
    submitted = []
    for _ in range(3):
        submitted.append(engines.submit(signalled.flow, backend=store, board=board).id)
        service._post_unposted()
        monkeypatch.setattr(service, "_complete_at", 0.0)
        service._post_unposted()
    assert checked == submitted


def test_suspended_flows_with_a_command_are_posted_only_without_a_job(
    monkeypatch: pytest.MonkeyPatch, store: sql.SQLBackend
) -> None:
    service = services.ConductorService(store)
    board: Any = service._board
    handles = engines.submit_many(signalled.flow, [{}] * 3, backend=store)
    command = rows.command_text(_commands.FlowCommand(_commands.RESUME))
    board.connect()
    with store.engine.begin() as connection:
        connection.execute(tables.FLOWS.update().values(state=states.SUSPENDED, wish=command))
        connection.execute(tables.JOBS.delete().where(tables.JOBS.c.uuid == handles[1].id))
    reposted: list[str] = []
    repost = board.repost

    def record(uuid: str, *args: Any, **options: Any) -> Any:
        reposted.append(uuid)
        return repost(uuid, *args, **options)

    monkeypatch.setattr(board, "repost", record)
    service._resume_lost()
    assert reposted == [handles[1].id]
    service._resume_lost()
    assert reposted == [handles[1].id]
    assert board.job_count == 3


def test_damaged_flow_does_not_prevent_the_resumption_of_others(
    store: sql.SQLBackend, caplog: pytest.LogCaptureFixture
) -> None:
    service = services.ConductorService(store)
    service._board.connect()
    damaged, other = engines.submit_many(signalled.flow, [{}] * 2, backend=store)
    with store.engine.begin() as connection:
        connection.execute(tables.JOBS.delete())
        connection.execute(tables.FLOWS.update().values(state=states.RUNNING))
        damage = tables.FLOWS.update().where(tables.FLOWS.c.uuid == damaged.id)
        connection.execute(damage.values(meta="{"))
    for _ in range(2):
        service._resume_lost()
    assert [job.uuid for job in service._board.iterjobs()] == [other.id]
    assert caplog.text.count("cannot be read") == 1
