"""Engines and workers over Redis, end to end."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from tests.support import brokers, sample_tasks, workers
from tests.support.workers import until
from wbengine import engines, exceptions, states
from wbengine.engines.worker_based._connections import consumer_loop
from wbengine.engines.worker_based.executor import WorkerTaskExecutor
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.transports._redis import redis_scripts

#: Maximum memory of an idle worker, in megabytes.
LIMIT = 60


def load(flow, url, **options):
    return engines.load(flow, engine="worker-based", url=str(url), topics=["t"], **options)


def test_flow_runs_and_leaves_no_keys(redis_url):
    flow = linear_flow.Flow("f").add(sample_tasks.Add("a"), sample_tasks.Double("b"))
    with workers.worker_in_thread(str(redis_url), sample_tasks.Add, sample_tasks.Double):
        engine = load(flow, redis_url, store={"x": 3, "y": 4})
        engine.run()
        assert engine.storage.fetch("double") == 14
        assert any(key.startswith("wbe:{default}:") for key in redis_url.left())
    assert redis_url.left() == []


def test_requests_are_claimed_without_separate_claim_calls(redis_url, client):
    flow = unordered_flow.Flow("f").add(*(sample_tasks.Nothing(f"n{n}") for n in range(50)))
    client.script_flush()  # other tests have loaded the script
    with workers.worker_in_thread(str(redis_url), sample_tasks.Nothing):
        load(flow, redis_url).run()
        claim, take = redis_scripts.SCRIPTS["claim"].digest, redis_scripts.SCRIPTS["take"].digest
        assert client.script_exists(claim, take) == [False, True]


def test_no_message_is_held_after_flow_ends(redis_url, patient, monkeypatch, client):
    monkeypatch.setattr(consumer_loop, "DRAIN_SECONDS", 60.0)
    flow = linear_flow.Flow("f").add(*(sample_tasks.Nothing(f"n{n}") for n in range(3)))
    with (
        workers.worker_in_thread(str(redis_url), sample_tasks.Nothing),
        contextlib.ExitStack() as stack,
    ):
        executor = WorkerTaskExecutor("e", "default", ["t"], url=str(redis_url))
        stack.callback(executor.stop)
        executor.start()
        for _ in range(5):
            engines.load(flow, engine="worker-based", executor=executor).run()
            until(lambda: not any(any(client.hkeys(key)) for key in client.keys("*}:h:*")))


def megabytes_of_an_idle_worker(redis_url, tmp_path):
    options = ("--url", str(redis_url), "--topic", "t", "--tasks", "tests.support.sample_tasks")
    bytecode = {"PYTHONDONTWRITEBYTECODE": ""}  # written for the next worker
    with workers.workers(tmp_path, *options, environment=bytecode, real=True) as (worker,):
        until(lambda: any(":qs" in key for key in redis_url.left()))
        time.sleep(0.3)
        with open(f"/proc/{worker.process.pid}/status") as file:
            (size,) = (line.split()[1] for line in file if line.startswith("VmRSS"))
        assert worker.stop() == 0
    assert redis_url.left() == []
    return int(size) / 1024


@pytest.mark.slow
def test_idle_worker_uses_little_memory(redis_url, tmp_path):
    """The first worker may compile imported modules, which needs memory once."""
    megabytes_of_an_idle_worker(redis_url, tmp_path)
    assert megabytes_of_an_idle_worker(redis_url, tmp_path) < LIMIT


def test_workers_and_engine_reconnect_after_server_was_wiped(redis_url, client):
    with workers.worker_in_thread(str(redis_url), sample_tasks.Nothing) as worker:
        load(linear_flow.Flow("f").add(sample_tasks.Nothing("a")), redis_url).run()
        client.flushdb()
        until(lambda: client.zcard("wbe:{default}:c"))
        engine = load(linear_flow.Flow("g").add(sample_tasks.Nothing("a")), redis_url)
        engine.run()
        assert engine.storage.get_flow_state() == states.SUCCESS
        assert worker.counts["SUCCESS"] == 2


def test_worker_survives_server_that_refuses_writes(tmp_path, caplog):
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
        until(lambda: "not closed cleanly" in caplog.text)
        release.touch()
        client.config_set("min-replicas-to-write", 0)
        running.join(60)
        assert engine.storage.get_flow_state() == states.SUCCESS
        assert worker.counts["SUCCESS"] == 1


def test_missing_server_is_reported_soon(redis_url, redis_server):
    redis_server.kill()
    engine = load(linear_flow.Flow("f").add(sample_tasks.Nothing("a")), redis_url)
    started = time.monotonic()
    with pytest.raises(exceptions.TransportFailure, match="cannot be"):
        engine.run()
    assert time.monotonic() - started < 30


def test_stopped_worker_with_running_task_leaves_no_keys(redis_url, tmp_path):
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
