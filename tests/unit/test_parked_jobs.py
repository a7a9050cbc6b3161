"""Jobs of parked flows in the database of the flows, whose board is elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import etcd_memory, signalled
from wbengine import engines, operations
from wbengine.jobs import _parked_jobs
from wbengine.jobs import base as jobs
from wbengine.jobs.backends import impl_etcd
from wbengine.persistence import backends as stores
from wbengine.persistence import base as persistence
from wbengine.persistence.backends import _sql as sql
from wbengine.persistence.backends._sql import tables


@pytest.fixture
def store(tmp_path: Path) -> Iterator[sql.SQLBackend]:
    with stores.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        assert isinstance(backend, sql.SQLBackend)
        yield backend


@pytest.fixture
def server() -> etcd_memory.Server:
    return etcd_memory.Server()


class Conductor:
    """The board and the parked jobs of one process."""

    def __init__(self, name: str, server: etcd_memory.Server, store: persistence.Backend) -> None:
        client = etcd_memory.Client(server)
        self.name = name
        self.board = impl_etcd.EtcdJobBoard(name, client=client, persistence=store)
        self.board.address = "host:2379"
        self.board.connect()
        parked = _parked_jobs.ParkedJobs.of(self.board, store)
        assert parked is not None
        self.parked = parked

    def take(self) -> jobs.Job:
        with jobs.claims_expiring_after(60):
            (job,) = self.board.take(self.name, 1)
        return job

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of jobs on the board and of parked jobs."""
        return self.board.job_count, self.parked.board.job_count


def test_due_job_is_posted_after_the_deletion_of_the_earlier_one(
    monkeypatch: pytest.MonkeyPatch, server: etcd_memory.Server, store: persistence.Backend
) -> None:
    monkeypatch.setattr(_parked_jobs, "_RETRY_SECONDS", 0.0)
    first, second = (Conductor(name, server, store) for name in ("first", "second"))
    handle = engines.submit(signalled.flow, backend=store, board=first.board)
    job = first.take()
    handle.signal("approved", 1)
    assert first.parked.board.park(job, first.name, None, 0)
    second.parked.post_due(second.name)
    first.parked.leave(job, first.name, True)
    assert first.counts == (0, 1)
    second.parked.post_due(second.name)
    assert first.counts == (1, 0)


@pytest.mark.parametrize("has_command", [False, True])
def test_due_job_waits_while_its_flow_runs(
    server: etcd_memory.Server, store: persistence.Backend, has_command: bool
) -> None:
    first, second = (Conductor(name, server, store) for name in ("first", "second"))
    handle = engines.submit(signalled.flow, backend=store, board=first.board)
    job = first.take()
    if has_command:
        operations.request(store, handle.id, "resume")
    else:
        handle.signal("approved", 1)
    assert first.parked.board.park(job, first.name, None, 0)
    second.parked.post_due(second.name)
    assert first.counts == (1, 1)
    assert not second.parked.board.take(second.name, 1)


def test_job_of_a_new_flow_that_is_posted_later_does_not_go_first(
    server: etcd_memory.Server, store: persistence.Backend
) -> None:
    first, second = (Conductor(name, server, store) for name in ("first", "second"))
    engines.submit(signalled.flow, backend=store, board=first.board)
    job = first.take()
    assert first.parked.board.park(job, first.name, None, None, limit="l")
    assert first.parked.board.offer_limited("l", [job.uuid])
    second.parked.post_due(second.name)
    assert first.counts == (1, 1)
    assert not second.parked.board.goes_first(job.uuid)


def test_processes_find_the_same_parked_jobs_after_the_board_lost_its_data(
    server: etcd_memory.Server, store: persistence.Backend
) -> None:
    first = Conductor("first", server, store)
    assert first.counts == (0, 0)
    server.clear()
    first.board.identify()
    second = Conductor("second", server, store)
    engines.submit(signalled.flow, backend=store, board=first.board)
    job = first.take()
    first.parked.leave(job, first.name, first.parked.board.park(job, first.name, 0.0, 0))
    second.parked.post_due(second.name)
    assert second.counts == (1, 0)


def test_damaged_flow_does_not_prevent_the_continuation_of_others(
    server: etcd_memory.Server, store: sql.SQLBackend
) -> None:
    conductor = Conductor("conductor", server, store)
    damaged, other = [
        engines.submit(signalled.flow, backend=store, board=conductor.board).id for _ in range(2)
    ]
    for _ in range(2):
        job = conductor.take()
        is_parked = conductor.parked.board.park(job, conductor.name, 0.0, 0)
        conductor.parked.leave(job, conductor.name, is_parked)
    with store.engine.begin() as connection:
        damage = tables.FLOWS.update().where(tables.FLOWS.c.uuid == damaged)
        connection.execute(damage.values(meta="{"))
    conductor.parked.post_due(conductor.name)
    assert [job.uuid for job in conductor.board.iterjobs()] == [other]
    assert conductor.parked.has(damaged)
