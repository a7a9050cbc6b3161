"""A job board in Redis: conductors of an earlier release beside new ones, and lost answers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from redis import exceptions as errors

from tests.support import brokers
from wbengine import exceptions
from wbengine.jobs import _places, backends, base
from wbengine.jobs.backends import impl_redis
from wbengine.persistence import models

PREFIX = "wbe:{default}:jobs:"


class Earlier:
    """The steps of the release that knew no queues."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._count = 0

    def post(self, name: str, rank: int = 2) -> str:
        self._count += 1
        uuid, score = models.new_uuid(), rank * 2**50 + self._count
        self._client.hset(f"{PREFIX}jobs", uuid, f'1 {{"format": 1, "name": "{name}"}}')
        self._client.hset(f"{PREFIX}updated", uuid, 1)
        for key in ("all", "free"):
            self._client.zadd(PREFIX + key, {uuid: score})
        return uuid

    def unclaimed(self) -> list[str]:
        return [uuid.decode() for uuid in self._client.zrange(f"{PREFIX}free", 0, -1)]

    def claim(self, uuid: str) -> None:
        self._client.hset(f"{PREFIX}owners", uuid, "0" * 32 + "earlier")
        self._client.zrem(f"{PREFIX}free", uuid)
        self._client.hincrby(f"{PREFIX}claims", uuid, 1)

    def release(self, uuid: str) -> None:
        self._client.zrem(f"{PREFIX}ends", uuid)
        self._client.hdel(f"{PREFIX}owners", uuid)
        score = self._client.zscore(f"{PREFIX}all", uuid)
        self._client.zadd(f"{PREFIX}free", {uuid: score})


@pytest.fixture
def url(broker_servers: brokers.Brokers) -> Iterator[str]:
    with broker_servers["redis"].place() as place:
        yield str(place)


@pytest.fixture
def board(url: str) -> Iterator[impl_redis.RedisJobBoard]:
    with backends.backend("board", url) as board:
        assert isinstance(board, impl_redis.RedisJobBoard)
        yield board


@pytest.fixture
def earlier(url: str) -> Iterator[Earlier]:
    with redis.Redis.from_url(url) as client:
        yield Earlier(client)


def post(board: impl_redis.RedisJobBoard, name: str, **place: Any) -> str:
    uuid, book = models.new_uuid(), models.LogBook(name)
    assert board.repost(uuid, name, book, _places.Place.of(**place)) is not None
    return uuid


def take(board: impl_redis.RedisJobBoard, limit: int = 1, *except_uuids: str) -> list[str]:
    return [job.name for job in board.take("me", limit, except_uuids)]


def fail_once(
    board: impl_redis.RedisJobBoard,
    patch: pytest.MonkeyPatch,
    step: str,
    error: type[Exception],
    *,
    executes: bool,
) -> tuple[Callable[..., Any], list[dict[str, Any]]]:
    """Let the next call of a step fail, after the server has executed it or before.

    Return the step, and the arguments of the call.
    """
    run, calls = board._steps[step], list[dict[str, Any]]()

    def fail(**arguments: Any) -> Any:
        patch.setitem(board._steps, step, run)
        calls.append(arguments)
        if executes:
            run(**arguments)
        raise error("lost")

    patch.setitem(board._steps, step, fail)
    return run, calls


def test_jobs_of_an_earlier_release_take_turns_with_keys(
    board: impl_redis.RedisJobBoard, earlier: Earlier
) -> None:
    for number in range(3):
        earlier.post(f"old{number}", rank=2 if number else 4)
        post(board, f"a{number}", fair_key="a")
    names = [name for _ in range(7) for name in take(board)]
    assert sorted(names[:2]) == ["a0", "old1"] and sorted(names[2:4]) == ["a1", "old2"]
    assert sorted(names[4:]) == ["a2", "old0"]


def test_earlier_release_serves_the_default_queue(
    board: impl_redis.RedisJobBoard, earlier: Earlier
) -> None:
    plain = post(board, "plain")
    post(board, "key", fair_key="a")
    post(board, "mail", queue="mails")
    assert earlier.unclaimed() == [plain]
    (job,) = board.take("me", 1)
    board.abandon(job, "me")
    assert earlier.unclaimed() == [plain]
    earlier.claim(plain)
    assert take(board, 5) == ["key"], "and not the job that it has claimed"


def test_job_that_an_earlier_release_gave_back_returns_to_its_queue(
    board: impl_redis.RedisJobBoard, earlier: Earlier
) -> None:
    """An earlier release ends expired claims of all jobs."""
    uuid = post(board, "mail", queue="mails", fair_key="a")
    post(board, "other", queue="mails", fair_key="b")
    board.queues = ("mails",)
    assert take(board) == ["mail"]
    earlier.release(uuid)
    board.queues = ("default",)
    assert take(board, 5) == []
    board.queues = ("mails",)
    assert take(board, 5) == ["mail", "other"]


@pytest.mark.parametrize("step", ["first", "second"])
def test_jobs_are_taken_once_if_the_answer_is_lost(
    board: impl_redis.RedisJobBoard, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The first attempt may have claimed jobs, or may not have reached the server."""
    for number in range(6):
        post(board, f"job{number}", fair_key=f"key{number % 2}")
    run, attempts = board._steps["take"], []

    def lose(**arguments: Any) -> Any:
        attempts.append(arguments)
        answer = run(**arguments) if len(attempts) > 1 or step == "first" else None
        if len(attempts) == 1:
            raise errors.ConnectionError("lost")
        return answer

    monkeypatch.setitem(board._steps, "take", lose)
    jobs = board.take("me", 3)
    assert [job.name for job in jobs] == ["job0", "job1", "job2"] or step == "first"
    assert sorted(job.name for job in jobs) == ["job0", "job1", "job2"] and len(attempts) == 2
    assert len(list(board.iterjobs(only_unclaimed=True))) == 3
    for job in jobs:
        assert job.claims == 1
        board.consume(job, "me")
    assert board.job_count == 3


def test_next_take_returns_the_jobs_of_a_take_without_an_answer(
    board: impl_redis.RedisJobBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `retry_on_timeout`, a timeout ends the call."""
    for number in range(3):
        post(board, f"job{number}")
    fail_once(board, monkeypatch, "take", errors.TimeoutError, executes=True)
    with pytest.raises(exceptions.JobFailure):
        board.take("me", 2)
    with base.claims_expiring_after(60):
        (job,) = board.take("other", 5)
        assert job.name == "job2"
        first, second = board.take("me", 2)
    assert [first.name, second.name, first.claims] == ["job0", "job1", 1]
    status = board.status_of(first)
    assert status is not None and status.owner == "me" and (status.remaining or 0) > 50
    assert board.take("me", 2) == [], "the next one is a new call"


@pytest.mark.parametrize("error", [errors.ConnectionError, errors.TimeoutError])
def test_take_that_is_executed_after_its_repetition_claims_nothing(
    board: impl_redis.RedisJobBoard, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """The server may read the first attempt later, because its connection is not closed there."""
    for number in range(4):
        post(board, f"job{number}")
    run, late = fail_once(board, monkeypatch, "take", error, executes=False)
    jobs = []
    with contextlib.suppress(exceptions.JobFailure):
        jobs += board.take("me", 2)
    jobs = jobs or board.take("me", 2)
    assert [job.name for job in jobs] == ["job0", "job1"]
    assert run(**late[0]) is None
    assert len(list(board.iterjobs(only_unclaimed=True))) == 2
    assert take(board, 5) == ["job2", "job3"]


def claim_and_abandon(board: impl_redis.RedisJobBoard) -> None:
    (job,) = board.iterjobs()
    board.claim(job, "me")
    board.abandon(job, "me")


def post_and_consume(board: impl_redis.RedisJobBoard) -> None:
    post(board, "other")
    first, other = board.take("me", 2)
    board.abandon(first, "me")
    board.consume(other, "me")


def pause_and_resume(board: impl_redis.RedisJobBoard) -> None:
    board.job_queues.pause("default")
    board.job_queues.resume("default")


@pytest.mark.parametrize(
    ("step", "act"),
    [("claim", claim_and_abandon), ("post", post_and_consume), ("pause", pause_and_resume)],
)
def test_step_that_is_executed_after_its_repetition_has_no_effect(
    board: impl_redis.RedisJobBoard,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    act: Callable[[impl_redis.RedisJobBoard], None],
) -> None:
    """Otherwise a job would stay claimed, be posted again, or a queue be paused again."""
    post(board, "job")
    run, late = fail_once(board, monkeypatch, step, errors.ConnectionError, executes=False)
    act(board)
    assert run(**late[0]) is None
    assert board.job_count == 1 and take(board, 5) == ["job"]


def test_claim_without_an_answer_can_be_abandoned(
    board: impl_redis.RedisJobBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    post(board, "job")
    fail_once(board, monkeypatch, "claim", errors.TimeoutError, executes=True)
    (job,) = board.iterjobs()
    with pytest.raises(exceptions.JobFailure):
        board.claim(job, "me")
    assert take(board, 5) == []
    board.abandon(job, "me")
    assert take(board, 5) == ["job"]


def test_turns_of_keys_are_deleted_when_they_are_over(
    board: impl_redis.RedisJobBoard, url: str
) -> None:
    """Keys of users would fill the memory of the server."""
    for number in range(250):
        post(board, "job", fair_key=f"user{number}")
        (job,) = board.take("me", 1)
        board.abandon(job, "me")
        (job,) = board.take("me", 1)
        board.consume(job, "me")
    assert board.job_count == 0
    with redis.Redis.from_url(url) as client:
        assert sorted(key.decode().removeprefix(PREFIX) for key in client.keys(f"{PREFIX}*")) == [
            *("id", "sequence")
        ]


def test_due_job_is_taken_first_although_it_has_no_claims(
    board: impl_redis.RedisJobBoard, earlier: Earlier
) -> None:
    post(board, "first", fair_key="a")
    uuid = post(board, "last", fair_key="a", priority=base.JobPriority.LOW)
    board.make_due(uuid)
    board.make_due(models.new_uuid())
    assert take(board, 2) == ["last", "first"]
    plain = post(board, "plain")
    assert take(board) == ["plain"]
    board.make_due(plain)
    assert earlier.unclaimed() == [] and take(board) == [], "it is claimed"
