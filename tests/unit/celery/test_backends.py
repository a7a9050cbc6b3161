"""Where results go, and how the parts of chords are counted."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.brokers import Place
from wbengine import exceptions
from wbengine.interop.celery import brokers
from wbengine.interop.celery.protocol.results import ChordPart, Result
from wbengine.interop.celery.worker import backends, posting
from wbengine.interop.celery.worker.backends import Redis

BODY = {"task": "body", "args": [], "kwargs": {}, "options": {}}


@pytest.fixture
def backend(redis_url: Place) -> Iterator[Redis]:
    with contextlib.closing(Redis(redis_url)) as made:
        yield made


@pytest.fixture
def kept(redis_url: Place) -> Iterator[Any]:
    import redis

    with contextlib.closing(redis.Redis.from_url(redis_url)) as client:
        yield client


@pytest.fixture
def post() -> Iterator[posting.Post]:
    made = posting.Post(brokers.Broker("memory://"), threading.Event())
    yield made
    made.reset()


def part(number: int, value: Any = None, state: str = "SUCCESS", index: Any = ...) -> ChordPart:
    return ChordPart("g", number if index is ... else index, f"t{number}", state, value, BODY)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("rcp://", "did you mean 'rpc'"),
        ("reddis://", "did you mean 'redis'"),
        ("amqp://me:secret@host", "cannot be kept at 'amqp://host'"),
        ("redis://me:secret@host:port/0", "no URL of a Redis"),
    ],
)
def test_a_backend_that_is_none(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"results|URL") as info:
        backends.backend_for(url)
    assert words in str(info.value)
    assert "secret" not in str(info.value)


def test_the_backends_by_url() -> None:
    assert isinstance(backends.backend_for("rpc://"), backends.Rpc)
    assert isinstance(backends.backend_for("none"), backends.Disabled)
    found = backends.backend_for("redis://:secret@host/3?x=1")
    assert (type(found), str(found)) == (Redis, "redis://host/3")


def test_urls_of_a_redis_as_celery_writes_them(post: posting.Post) -> None:
    for url, away in (
        ("rediss://127.0.0.1:1/0?ssl_cert_reqs=CERT_NONE", "Connection refused"),
        ("redis+socket:///nowhere/redis.sock", "No such file"),
    ):
        found = backends.backend_for(url)
        with pytest.raises(found.errors, match=away):
            found.set_size("g", 2)


def test_chords_need_a_redis(post: posting.Post) -> None:
    for url in ("rpc://", "none"):
        found = backends.backend_for(url)
        with pytest.raises(exceptions.ExecutionFailure, match=f"in a Redis, not {url}"):
            found.count(part(1))


def test_rpc_answers_in_the_queue_of_the_client(post: posting.Post) -> None:
    results = [
        Result("one", "SUCCESS", 3, reply_to="answers", correlation_id="c"),
        Result("two", "SUCCESS", 4),  # nobody asked
    ]
    backends.Rpc().store(post, results)
    with post._connection.channel() as channel:  # type: ignore[union-attr]
        message = channel.basic_get("answers", no_ack=True)
        assert channel.basic_get("answers") is None
    assert message.properties["correlation_id"] == "c"
    told = json.loads(message.body)
    assert (told["task_id"], told["status"], told["result"]) == ("one", "SUCCESS", 3)


def test_results_are_kept_for_a_while_and_told(
    post: posting.Post, redis_url: Place, kept: Any
) -> None:
    backend = Redis(redis_url, expires=60)
    heard = kept.pubsub()
    heard.subscribe("celery-task-meta-one")
    assert heard.get_message(timeout=60)["type"] == "subscribe"
    backend.store(post, [Result("one", "STARTED"), Result("one", "SUCCESS", "ü")])
    said = [json.loads(heard.get_message(timeout=60)["data"])["status"] for _ in range(2)]
    assert said == ["STARTED", "SUCCESS"]
    assert json.loads(kept.get("celery-task-meta-one"))["result"] == "ü"
    assert 50 < kept.ttl("celery-task-meta-one") <= 60
    heard.close()
    backend.close()


def test_a_success_is_never_overwritten(backend: Redis, post: posting.Post, kept: Any) -> None:
    backend.store(post, [Result("one", "FAILURE", {"exc_type": "E"})])
    backend.store(post, [Result("one", "SUCCESS", 1)])
    backend.store(post, [Result("one", "FAILURE", {"exc_type": "WorkerLostError"})])
    assert json.loads(kept.get("celery-task-meta-one"))["status"] == "SUCCESS"


def test_results_may_be_kept_for_ever(post: posting.Post, redis_url: Place, kept: Any) -> None:
    with contextlib.closing(Redis(redis_url, expires=0)) as backend:
        backend.store(post, [Result("one", "SUCCESS", 1)])
    assert kept.ttl("celery-task-meta-one") == -1


def test_parts_of_a_chord_are_counted_once(backend: Redis) -> None:
    """The last one gets all, in their order, however they came."""
    backend.set_size("g", 3)
    assert backend.count(part(2, "c")) is None
    assert backend.count(part(0, "a")) is None
    assert backend.count(part(0, "again")) is None
    found = backend.count(part(1, "b"))
    assert found is not None
    assert found.parts == [("t0", "SUCCESS", "a"), ("t1", "SUCCESS", "b"), ("t2", "SUCCESS", "c")]
    assert backend.keeps(found)
    assert backend.count(part(1, "b")) is None  # somebody has it
    backend.finish(found)
    assert not backend.keeps(found)
    assert backend.count(part(1, "b")) is None  # it is done


def test_parts_without_numbers(backend: Redis) -> None:
    backend.set_size("g", 2)
    assert backend.count(part(1, "a", index=None)) is None
    found = backend.count(part(2, "b", index=None))
    assert found is not None
    assert sorted(value for _, _, value in found.parts) == ["a", "b"]


def test_a_chord_whose_size_nobody_told(backend: Redis, kept: Any) -> None:
    assert backend.count(part(0, "a")) is None
    backend.set_size("g", 1)
    assert backend.count(part(0, "a")) is not None
    assert kept.ttl("celery-taskset-meta-g.j") > 0


def test_a_claim_that_nobody_used_is_over_some_time(backend: Redis, kept: Any) -> None:
    """Whoever died with it is not waited for; whoever was slow does not send the body as well."""
    backend.set_size("g", 1)
    slow = backend.count(part(0, "a"))
    assert slow is not None
    assert 0 < kept.ttl("celery-taskset-meta-g.c") <= 10
    kept.delete("celery-taskset-meta-g.c")  # it is over
    other = backend.count(part(0, "a"))
    assert other is not None
    assert not backend.keeps(slow)
    assert backend.keeps(other)


def test_groups_within_a_header(backend: Redis, post: posting.Post) -> None:
    """Values are arranged as the groups are, where a client said how that is."""
    inner = [["in", None], [[["t1", None], None], [["t2", None], None]]]
    backend.save_group("g", [["g", None], [[["t0", None], None], inner]])
    backend.set_size("g", 3)
    for number in (0, 1):
        backend.store(post, [Result(f"t{number}", "SUCCESS", number)])
        assert backend.count(part(number, number)) is None
    found = backend.count(part(2, 2))
    assert found is not None
    assert [value for _, _, value in found.parts] == [0, [1, 2]]


def test_a_failure_within_a_group_within_a_header(backend: Redis) -> None:
    backend.save_group("g", [["g", None], [[["in", None], [[["t0", None], None]]]]])
    backend.set_size("g", 1)
    found = backend.count(part(0, {"exc_type": "E"}, "FAILURE"))
    assert found is not None
    assert found.parts == [("t0", "FAILURE", {"exc_type": "E"})]
