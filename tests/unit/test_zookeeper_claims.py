"""Claims of a job board in ZooKeeper, which last as long as the session of their owner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import zookeeper_memory
from wbengine import exceptions
from wbengine._runtime import control
from wbengine.conductors.backends import impl_blocking
from wbengine.jobs import base
from wbengine.jobs.backends import impl_sql, impl_zookeeper
from wbengine.persistence import backends as stores
from wbengine.persistence import models

CONSUME, ABANDON, TRASH = "consume", "abandon", "trash"


@pytest.fixture
def server() -> zookeeper_memory.Server:
    return zookeeper_memory.Server()


@pytest.fixture
def client(server: zookeeper_memory.Server) -> zookeeper_memory.Client:
    return zookeeper_memory.Client(server)


@pytest.fixture
def board(client: zookeeper_memory.Client) -> impl_zookeeper.ZookeeperJobBoard:
    board = impl_zookeeper.ZookeeperJobBoard("board", client=client)
    board.connect()
    return board


@pytest.mark.parametrize("how", [CONSUME, ABANDON, TRASH])
def test_claim_without_a_connection_is_released_later(
    how: str, client: zookeeper_memory.Client, board: impl_zookeeper.ZookeeperJobBoard
) -> None:
    posted = board.post("x")
    (job,) = board.take("me", 1)
    client.connected = False
    with pytest.raises(exceptions.JobFailure):
        getattr(board, how)(job, "me")
    client.connected = True
    assert board.take("me", 1) == [posted]


def test_claim_is_released_later_by_a_conductor_that_takes_no_more_jobs(
    server: zookeeper_memory.Server,
    client: zookeeper_memory.Client,
    board: impl_zookeeper.ZookeeperJobBoard,
) -> None:
    board.post("x")
    board.post("y")
    released, running = board.take("me", 2)
    client.connected = False
    with pytest.raises(exceptions.JobFailure):
        board.abandon(released, "me")
    client.connected = True
    assert running.extend_expiry(15)
    another = impl_zookeeper.ZookeeperJobBoard("another", client=zookeeper_memory.Client(server))
    another.connect()
    assert another.take("you", 2) == [released]


def test_taken_jobs_are_returned_if_reading_further_ones_fails(
    monkeypatch: pytest.MonkeyPatch,
    client: zookeeper_memory.Client,
    board: impl_zookeeper.ZookeeperJobBoard,
) -> None:
    posted = [board.post(f"{number}") for number in range(17)]
    claim = board.claim

    def lose_connection(job: base.Job, who: str) -> None:
        if job == posted[15]:  # The last one of the first page.
            client.connected = False
            raise exceptions.UnclaimableJob("another owner has it")
        claim(job, who)

    monkeypatch.setattr(board, "claim", lose_connection)
    assert board.take("me", 16) == posted[:15]


def test_claim_whose_release_had_no_answer_does_not_end_the_next_one(
    client: zookeeper_memory.Client, board: impl_zookeeper.ZookeeperJobBoard
) -> None:
    board.post("x")
    (job,) = board.take("me", 1)
    client.loses_answers = True
    with pytest.raises(exceptions.JobFailure):
        board.abandon(job, "me")
    client.loses_answers = False
    (again,) = board.take("me", 1)
    assert not list(board.iterjobs(only_unclaimed=True))
    assert again.extend_expiry(15) and not job.extend_expiry(15)
    with pytest.raises(exceptions.JobFailure, match="claimed again by me"):
        board.consume(job, "me")
    board.consume(again, "me")
    assert board.job_count == 0


def test_lost_claim_is_released_on_a_server_that_is_behind(
    server: zookeeper_memory.Server,
    client: zookeeper_memory.Client,
    board: impl_zookeeper.ZookeeperJobBoard,
) -> None:
    posted = board.post("x")
    client.loses_answers = True
    with pytest.raises(exceptions.JobFailure):
        board.take("me", 1)
    client.loses_answers = False
    server.late.update(path for path in server.nodes if path.endswith(".lock"))
    assert board.take("me", 1) == [posted]


def test_job_that_is_trashed_during_a_repost_stays_in_the_trash(
    monkeypatch: pytest.MonkeyPatch,
    server: zookeeper_memory.Server,
    board: impl_zookeeper.ZookeeperJobBoard,
) -> None:
    board.repost("u", "x", models.LogBook("b"))
    (job,) = board.take("me", 1)
    another = impl_zookeeper.ZookeeperJobBoard("another", client=zookeeper_memory.Client(server))
    another.connect()
    commit = another._commit

    def late(*args: Any) -> Any:
        board.trash(job, "me")
        return commit(*args)

    monkeypatch.setattr(another, "_commit", late)
    assert another.repost("u", "x", models.LogBook("b")) is None
    assert board.job_count == 0 and board.is_trashed("u")


def test_conductor_that_cannot_park_a_flow_releases_its_job(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    client: zookeeper_memory.Client,
) -> None:
    def fail(*_: Any) -> Any:
        raise exceptions.JobFailure("the database is unreachable")

    with stores.backend(f"sqlite:///{tmp_path}/flows.db") as store:
        board = impl_zookeeper.ZookeeperJobBoard("board", client=client, persistence=store)
        board.connect()
        posted = board.repost("u", "x", models.LogBook("b"))
        conductor = impl_blocking.BlockingConductor("me", board, store)
        (job,) = board.take("me", 1)
        monkeypatch.setattr(impl_sql.SQLJobBoard, "park", fail)
        conductor._park(job, control.Parked(None, 0))
        assert board.take("me", 1) == [posted]
