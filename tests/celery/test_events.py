"""Events on real brokers: what Celery's monitors see of our workers, and we of Celery's."""

from __future__ import annotations

import contextlib
import random
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.celery import peers
from tests.support import sample_tasks
from tests.support.brokers import KILLED, Broker, Brokers, Place, Rabbitmq, Redis
from tests.support.workers import until, workers
from wbengine import engines
from wbengine.interop.celery.monitoring import publisher, receiver
from wbengine.patterns import linear_flow


@pytest.fixture
def server(kind: str, broker_servers: Brokers) -> Broker:
    return broker_servers[kind]


@contextlib.contextmanager
def hearing(url: str, **options: Any) -> Iterator[receiver.EventReceiver]:
    made = receiver.EventReceiver(url, **options)
    thread = threading.Thread(target=made.run, daemon=True)
    thread.start()
    assert made.wait(60)
    try:
        yield made
    finally:
        made.stop()
        thread.join(60)
        assert not thread.is_alive()


@contextlib.contextmanager
def telling(url: str, **options: Any) -> Iterator[publisher.EventPublisher]:
    made = publisher.EventPublisher(url, "ours@here", **options)
    made.start()
    try:
        yield made
    finally:
        made.stop()


def cut(server: Broker, url: str) -> None:
    """Have the broker close all connections to a place."""
    place = urllib.parse.urlsplit(url).path.lstrip("/")
    if isinstance(server, Rabbitmq):
        server.cut(place)
    else:
        assert isinstance(server, Redis)
        with server.client(place) as client:
            own = client.client_id()
            for each in client.client_list():  # the server is not this test's alone
                if each["db"] == place and int(each["id"]) != own:
                    client.client_kill_filter(_id=each["id"])


def state_of(made: receiver.EventReceiver, uuid: str) -> str | None:
    task = made.state.task(uuid)
    return task.state if task is not None else None


def test_what_celerys_workers_tell(celery: peers.Celery, client: peers.Client, url: Place) -> None:
    arguments = "-E", "--heartbeat-interval", "600"
    with celery.worker(url, "threads", arguments=arguments), hearing(url) as made:
        conf = peers.conf_of(url, task_send_sent_event=True)
        done = client.call("run", conf, f"{peers.NAME}.add", (1, 2), {})
        bad = client.call("run", conf, f"{peers.NAME}.add", (1, "x"), {})
        until(lambda: state_of(made, done["id"]) == "SUCCESS")
        until(lambda: state_of(made, bad["id"]) == "FAILURE")
        task, failed = made.state.task(done["id"]), made.state.task(bad["id"])
        assert task is not None
        assert failed is not None
        assert (task.name, task.args, task.result) == (f"{peers.NAME}.add", "(1, 2)", "3")
        until(lambda: len(getattr(made.state.task(done["id"]), "times", ())) == 4)
        task = made.state.task(done["id"])
        assert task is not None
        assert set(task.times) == {"sent", "received", "started", "succeeded"}
        assert (task.state, task.worker, task.queue) == ("SUCCESS", "celery@here", peers.QUEUE)
        assert (task.client or "").startswith("gen")
        assert task.runtime is not None
        assert "TypeError" in (failed.exception or "")
        assert "Traceback" in (failed.traceback or "")
        # It was asked for a heartbeat.
        until(lambda: any(worker.sw_ident == "py-celery" for worker in made.state.alive()))
        assert made.clock.value > 6
        assert made.counts["refused"] == 0


def test_what_celerys_monitors_hear(celery: peers.Celery, url: Place) -> None:
    with celery.command(url, "events", "--dump") as dump, celery.flower(url) as flower:
        with telling(url, facts=lambda: {"active": 1, "processed": 7}, period=0.1) as made:
            until(lambda: "heartbeat" in dump.text and _workers(flower))
            for kind, fields in LIFE:
                made.tell(kind, uuid="u-1", **fields)
            until(lambda: "task succeeded" in dump.text)
            until(lambda: _tasks(flower).get("u-1", {}).get("state") == "SUCCESS")
            until(lambda: _workers(flower) == {"ours@here": True})
            assert _tasks(flower)["u-1"]["name"] == "proj.add"
        until(lambda: "shutdown" in dump.text)
        until(lambda: _workers(flower) == {"ours@here": False})
        lines = [line for line in dump.text.splitlines() if "task" in line]
        words = ("received", "started", "succeeded")
        assert [word in line for word, line in zip(words, lines, strict=True)] == [True] * 3
        assert "proj.add(u-1) args=(2, 2) kwargs={}" in lines[0]
        assert "result=4" in lines[2]


LIFE = (
    (
        "task-received",
        {
            "name": "proj.add", "args": "(2, 2)", "kwargs": "{}", "retries": 0, "eta": None,
            "expires": None, "root_id": "u-1", "parent_id": None,
        },
    ),
    ("task-started", {}),
    ("task-succeeded", {"result": "4", "runtime": 0.1}),
)  # fmt: skip


def _workers(flower: peers.Flower) -> Any:
    return flower.ask("/api/workers?status=1")


def _tasks(flower: peers.Flower) -> Any:
    return flower.ask("/api/tasks")


def test_our_own_requests_as_celerys_monitors_see_them(
    celery: peers.Celery, url: Place, tmp_path: Path
) -> None:
    flow = linear_flow.Flow("f").add(sample_tasks.Add(), sample_tasks.Double(), sample_tasks.Fail())
    words = "--url", url, "--topic", "t", "--tasks", sample_tasks.__name__, "--threads", "2"
    with (
        celery.command(url, "events", "--dump") as dump,
        celery.flower(url, "--inspect_timeout=50000") as flower,
        workers(tmp_path, *words, "--events", "celery", "--celery-name", "ours@here") as (ours,),
    ):
        until(lambda: "heartbeat" in dump.text and _workers(flower))
        loaded = engines.load(
            flow, engine="worker-based", url=url, topics=["t"], store={"x": 20, "y": 1}
        )
        with pytest.raises(ValueError, match="went wrong"):
            loaded.run()

        def states() -> dict[str, str]:
            found = _tasks(flower).values()
            return {each["name"].rpartition(".")[2]: each["state"] for each in found}

        until(lambda: states() == {"Add": "SUCCESS", "Double": "SUCCESS", "Fail": "FAILURE"})
        (add,) = (each for each in _tasks(flower).values() if each["name"].endswith("Add"))
        assert (add["result"], add["worker"]) == ("21", "ours@here")
        assert add["root_id"] == loaded.storage.flow_uuid
        until(lambda: _workers(flower) == {"ours@here": True})
        found = flower.ask("/api/workers?refresh=1&workername=ours@here")
        assert found["ours@here"]["stats"]["pid"] == ours.process.pid
        assert ours.stop() == 0
        until(lambda: "shutdown" in dump.text)
        assert f"task failed: {sample_tasks.__name__}.Fail" in dump.text
        assert " processed=3" in dump.text.splitlines()[-1]


def test_broken_connections(server: Broker, url: Place) -> None:
    with hearing(url) as made, telling(url, period=0.1) as told:
        until(made.state.alive)
        for number in range(3):

            def broke(before: int = made.counts["connected"]) -> bool:
                cut(server, url)  # RabbitMQ does not know of all connections at once
                told.tell("task-started", uuid="meanwhile")
                with contextlib.suppress(AssertionError):
                    until(lambda: made.counts["connected"] > before, within=0.2)
                return made.counts["connected"] > before

            until(broke)

            def came(uuid: str = f"after {number}") -> bool:
                told.tell("task-succeeded", uuid=uuid)
                return state_of(made, uuid) == "SUCCESS"

            until(came)
    assert told.counts["dropped"] == 0
    assert made.counts["refused"] == 0


def test_mutated_deliveries_never_end_it(redis_server: Redis, redis_url: Place) -> None:
    """Redis takes what is no message at all."""
    dice = random.Random(9)
    number = urllib.parse.urlsplit(redis_url).path.lstrip("/")
    channel = f"/{number}.celeryev/task.x"
    odd = [b"", b"7", b"[]", b"{}", b"null", b'{"properties": {}}', b'{"body": 7}', b"\xff"]
    with (
        redis_server.client(number) as client,
        hearing(redis_url) as made,
        telling(redis_url, period=0.1) as told,
    ):
        good = _overheard(client, f"/{number}.celeryev/*")
        for _ in range(1000):
            data = bytearray(good)
            for _ in range(dice.randint(1, 8)):
                data[dice.randrange(len(data))] = dice.randrange(256)
            client.publish(channel, dice.choice([bytes(data), *odd]))

        def came() -> bool:
            told.tell("task-succeeded", uuid="the last")
            return state_of(made, "the last") == "SUCCESS"

        until(came)
    assert made.counts["connected"] == 1
    assert made.counts["refused"] > 100


def _overheard(client: Any, pattern: str) -> bytes:
    """A message as it is on the wire."""
    with client.pubsub() as spy:
        spy.psubscribe(pattern)
        found: list[Any] = []
        until(lambda: found.append(spy.get_message(timeout=0.2)) or "pmessage" in str(found[-1]))  # type: ignore[func-returns-value]
        data: bytes = found[-1]["data"]
        return data


@pytest.mark.parametrize("kind", KILLED)
def test_nobody_waits_for_a_broker_that_is_frozen(server: Broker, url: Place) -> None:
    def dropped() -> int:
        """How many there is no room for, after a thousand more."""
        for number in range(1000):
            told.tell("task-started", uuid=str(number))
        return told.counts["dropped"]

    with telling(url, limit=1000) as told:
        until(lambda: told.counts["sent"])
        server.pause()
        try:
            until(lambda: dropped() > 3000)
        finally:
            server.resume()


def test_nothing_is_left_behind(kind: str, url: Place) -> None:
    with hearing(url) as made, telling(url):
        until(made.state.alive)
    if kind == "rabbitmq":
        until(lambda: not [name for name in url.left() if name.startswith("queue ")])
    else:  # a set without members is no key
        until(lambda: not [name for name in url.left() if "celeryev" in name])
