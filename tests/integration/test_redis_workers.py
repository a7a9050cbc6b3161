"""Engines and workers over Redis, end to end."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from tests.support import brokers, sample_tasks, workers
from tests.support.workers import until
from wbengine import engines, exceptions, states
from wbengine.engines.worker_based.connections import consumer_loop
from wbengine.engines.worker_based.executor import WorkerTaskExecutor
from wbengine.engines.worker_based.ledger import ledger_scripts as steps
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.transports import _redis_scripts

#: Megabytes an idle worker may take.
LIMIT = 60


def load(flow, url, **options):
    return engines.load(flow, engine="worker-based", url=str(url), topics=["t"], **options)


def test_a_flow_runs_and_leaves_nothing(redis_url):
    flow = linear_flow.Flow("f").add(sample_tasks.Add("a"), sample_tasks.Double("b"))
    with workers.worker_in_thread(str(redis_url), sample_tasks.Add, sample_tasks.Double):
        engine = load(flow, redis_url, store={"x": 3, "y": 4})
        engine.run()
        assert engine.storage.fetch("double") == 14
        assert any(key.startswith("wbe:{default}:") for key in redis_url.left())
    assert redis_url.left() == []


def test_requests_are_claimed_by_the_take_alone(redis_url, redis_server):
    """Of what an engine and a worker ask for, no step is a claim."""
    flow = unordered_flow.Flow("f").add(*(sample_tasks.Nothing(f"n{n}") for n in range(50)))
    with redis_server.client() as client:
        client.script_flush()  # others asked for what this one must not
    with workers.worker_in_thread(str(redis_url), sample_tasks.Nothing):
        load(flow, redis_url).run()
        with redis_server.client() as client:
            claim, take = steps.CLAIM.digest, _redis_scripts.TAKE.digest
            assert client.script_exists(claim, take) == [False, True]


@pytest.mark.parametrize("ledger", [None, "none", "sqlite"])
def test_nothing_is_held_any_more_as_soon_as_it_is_answered(
    redis_url, redis_server, tmp_path, ledger, patient, monkeypatch
):
    """Whether or not anybody has to say anything else; an engine, too, holds no answer."""
    monkeypatch.setattr(consumer_loop, "DRAIN_PERIOD", 60.0)
    place = f"sqlite:///{tmp_path}/ledger.db" if ledger == "sqlite" else ledger
    flow = linear_flow.Flow("f").add(*(sample_tasks.Nothing(f"n{n}") for n in range(3)))
    with (
        workers.worker_in_thread(str(redis_url), sample_tasks.Nothing, ledger=place),
        redis_server.client(redis_url.rpartition("/")[2]) as client,
        contextlib.ExitStack() as stack,
    ):
        executor = WorkerTaskExecutor("e", "default", ["t"], url=str(redis_url), ledger=place)
        stack.callback(executor.stop)
        executor.start()
        for _ in range(5):
            engines.load(flow, engine="worker-based", executor=executor).run()
            until(lambda: not client.keys("*}:h:*"))


def megabytes_of_an_idle_worker(redis_url, tmp_path):
    options = ("--url", str(redis_url), "--topic", "t", "--tasks", "tests.support.sample_tasks")
    bytecode = {"PYTHONDONTWRITEBYTECODE": ""}  # is written, so that the next one finds it
    with workers.workers(tmp_path, *options, environment=bytecode) as (worker,):
        until(lambda: any(":qs" in key for key in redis_url.left()))
        time.sleep(0.3)
        with open(f"/proc/{worker.process.pid}/status") as file:
            (size,) = (line.split()[1] for line in file if line.startswith("VmRSS"))
        assert worker.stop() == 0
    assert redis_url.left() == []
    return int(size) / 1024


def test_an_idle_worker_is_small(redis_url, tmp_path):
    """The second one: the first may have to compile what it imports, which takes memory once."""
    megabytes_of_an_idle_worker(redis_url, tmp_path)
    assert megabytes_of_an_idle_worker(redis_url, tmp_path) < LIMIT


def test_wiped_server_loses_its_requests_only_and_workers_meet_again(redis_url, redis_server):
    """Worker and engine find each other again, and the next flow runs."""
    with workers.worker_in_thread(str(redis_url), sample_tasks.Nothing) as worker:
        load(linear_flow.Flow("f").add(sample_tasks.Nothing("a")), redis_url).run()
        with redis_server.client(redis_url.rpartition("/")[2]) as client:
            client.flushdb()
            until(lambda: client.zcard("wbe:{default}:c"))
        engine = load(linear_flow.Flow("g").add(sample_tasks.Nothing("a")), redis_url)
        engine.run()
        assert engine.storage.get_flow_state() == states.SUCCESS
        assert worker.counts["SUCCESS"] == 2


def test_a_worker_outlives_a_server_that_refuses_to_write(tmp_path, caplog):
    """As one does whose disk is full, or whose replicas are gone."""
    caplog.set_level("DEBUG", "wbengine.transports")
    release = tmp_path / "release"
    flow = linear_flow.Flow("f").add(sample_tasks.WaitFor("w"))
    with (
        brokers.redis() as server,
        server.client() as client,
        workers.worker_in_thread(server.url(), sample_tasks.WaitFor, threads_count=1) as worker,
    ):
        engine = load(
            flow,
            server.url(),
            store={"started": str(tmp_path / "started"), "release": str(release)},
        )
        running = threading.Thread(target=engine.run)
        running.start()
        until(lambda: worker.life.current)
        client.config_set("min-replicas-to-write", 1)
        until(lambda: "not closed in order" in caplog.text)
        release.touch()
        client.config_set("min-replicas-to-write", 0)
        running.join(60)
        assert engine.storage.get_flow_state() == states.SUCCESS
        assert worker.counts["SUCCESS"] == 1


def test_no_server_is_told_soon(redis_url, redis_server):
    redis_server.kill()
    engine = load(linear_flow.Flow("f").add(sample_tasks.Nothing("a")), redis_url)
    started = time.monotonic()
    with pytest.raises(exceptions.TransportFailure, match="cannot be"):
        engine.run()
    assert time.monotonic() - started < 30


def test_a_worker_that_gives_up_leaves_nothing(redis_url, tmp_path):
    release = tmp_path / "release"
    flow = linear_flow.Flow("f").add(sample_tasks.WaitFor("w"))
    store = {"started": str(tmp_path / "started"), "release": str(release)}
    with workers.worker_in_thread(str(redis_url), sample_tasks.WaitFor, threads_count=1) as worker:
        engine = load(flow, redis_url, store=store)
        ends = []

        def run():
            with pytest.raises(exceptions.WorkerLost):
                engine.run()
            ends.append(engine.storage.get_flow_state())

        running = threading.Thread(target=run)
        running.start()
        until(lambda: worker.life.current)
        worker.stop()
        worker.abandon()
        running.join(60)
        release.touch()
    assert ends == [states.REVERTED]
    assert redis_url.left() == []
