"""Flows continue during faults of brokers, disks and processes."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kombu
import pytest

from tests.seams import ledgers
from tests.support import (
    audited_tasks,
    brokers,
    disks,
    engine_threads,
    python,
    sample_tasks,
    tcp_proxy,
    workers,
)
from tests.support.waiting import until
from wbengine import engines, states
from wbengine import exceptions as exc
from wbengine.engines.worker_based.executor import WorkerTaskExecutor
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import backends, models

ID = "0b7f8a52-8f3e-5d6e-9a30-1d1f0f4e8a11"


def run(flow: Any, **options: Any) -> engine_threads.Running:
    """Load a flow, and run it in a thread."""
    started = engine_threads.Running(engines.load(flow, **options))
    started.start()
    return started


# -- brokers


class Starved:
    """A RabbitMQ that is short of memory.

    A worker with one slot runs the flow `first`. The request of the flow `waiting` is in the queue.
    """

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder = folder
        self.server = stack.enter_context(brokers.rabbitmq())
        self._url = stack.enter_context(self.server.place())
        self._stack = stack
        self.worker = self.work()
        self._executor = WorkerTaskExecutor("e", "default", ["t"], url=self._url, worker_expiry=5)
        stack.callback(self._executor.stop)
        self._executor.wait_for_workers(1, 60)
        self.runs = [self.run("first")]
        until(lambda: self.began("first"))
        self.runs.append(self.run("waiting"))
        until(self._waits)
        self.server.alarm()

    def run(self, name: str) -> engine_threads.Running:
        flow = linear_flow.Flow(name).add(sample_tasks.WaitFor("w"))
        release = str(self._folder / f"{name}-release")
        store = {"started": str(self._folder / name), "release": release}
        return run(flow, store=store, engine="worker-based", executor=self._executor)

    def work(self) -> Any:
        """Start another worker with one slot."""
        return self._stack.enter_context(
            workers.worker_in_thread(self._url, sample_tasks.WaitFor, threads_count=1)
        )

    def began(self, name: str) -> bool:
        return (self._folder / name).exists()

    def release(self, *names: str) -> None:
        for name in names:
            (self._folder / f"{name}-release").touch()

    def _waits(self) -> int:
        """Return the number of requests that wait in the broker."""
        with kombu.Connection(self._url) as connection:
            channel = connection.default_channel
            return sum(
                channel.queue_declare(queue["name"], passive=True).message_count
                for queue in self.server.queues(self._url.rpartition("/")[2])
                if queue["name"].startswith("t.")
            )


@pytest.mark.slow
def test_rabbitmq_short_of_memory_delays_replies_and_loses_no_worker(tmp_path: Path) -> None:
    """The memory alarm lasts longer than `worker_expiry`.

    Requests published before the alarm are delivered to a worker with a free slot. Requests
    published during the alarm are delivered after it.
    """
    with contextlib.ExitStack() as stack:
        starved = Starved(tmp_path, stack)
        starved.runs.append(starved.run("blocked"))
        starved.release("first")
        other = starved.work()
        until(lambda: starved.began("waiting"))
        starved.release("waiting", "blocked")
        time.sleep(8)
        assert all(started.is_alive() for started in starved.runs)
        assert not starved.began("blocked")
        starved.server.calm()
        assert {started.end() for started in starved.runs} == {states.SUCCESS}
        assert starved.worker.counts["SUCCESS"] + other.counts["SUCCESS"] == 3


def test_redis_restored_from_a_snapshot_grants_no_second_claim() -> None:
    """In the snapshot a completed and dropped row is still OPEN."""
    with brokers.redis(appendonly="no") as server:
        with contextlib.closing(ledgers.open_ledger(server.url())) as ledger:
            ledger.open(ID, 1)
            with server.client() as client:
                client.save()
            assert ledger.claim(ID, 1, "one").granted
            assert ledger.finish(ID, 1, "one", b"result")
            ledger.drop(ID)
            server.kill()
            server.start()
            row = ledger.state(ID)
            if row is None:
                pytest.fail("the snapshot was not read", pytrace=False)
        with contextlib.closing(ledgers.open_ledger(server.url())) as other:
            assert not other.claim(ID, 1, "two").granted


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["cut", "late"])
def test_worker_reconnecting_to_redis_runs_each_request_once(
    redis_server: brokers.Redis, redis_url: str, tmp_path: Path, fault: str
) -> None:
    """The worker claims its requests again, while the server redelivers some to the other."""
    count = 150
    flow = unordered_flow.Flow("flow")
    flow.add(*(audited_tasks.Once(f"once{n}", provides=f"once{n}") for n in range(count)))
    store = {"folder": str(tmp_path), "value": 1, "nap": 0.05}
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(tcp_proxy.threaded(redis_server.port))
        through = str(redis_url).replace(f":{redis_server.port}/", f":{proxy.port}/")
        for url in (through, str(redis_url)):
            words = ["--url", url, "--topic", "t", "--threads", "4"]
            words += ["--tasks", "tests.support.audited_tasks"]
            stack.enter_context(workers.workers(tmp_path, *words))
        executor = WorkerTaskExecutor("e", "default", ["t"], url=str(redis_url), worker_expiry=15)
        stack.callback(executor.stop)
        executor.wait_for_workers(2, 60)
        started = run(flow, store=store, engine="worker-based", executor=executor)
        done = 0
        while started.is_alive() and done < count:
            until(lambda: not started.is_alive() or len(lines(tmp_path)) > done)  # noqa: B023
            if fault == "late":
                proxy.keep("to-server")
                time.sleep(0.1)
            proxy.cut()
            proxy.resume()
            done = len(lines(tmp_path)) + 15
        assert started.end() == states.SUCCESS
        for number in range(count):
            assert len(audited_tasks.runs(tmp_path, f"once{number}")) == 1


def lines(folder: Path) -> list[str]:
    path = folder / "runs"
    return path.read_text().splitlines() if path.exists() else []


# -- processes


def test_error_names_stopped_process_that_locks_the_database(tmp_path: Path) -> None:
    """The process owns the lock of the database file until it continues or is killed."""
    place = f"sqlite:///{tmp_path}/store.db"
    words = ["-m", "tests.support.stopping_engine", place, "sql.before-commit"]
    with backends.backend(place) as backend, contextlib.closing(backend.get_connection()):
        pass  # create the tables
    with python.start(words, cwd=workers.REPOSITORY) as stopped:
        try:
            until(lambda: is_stopped(stopped.pid), 30)
            flow = linear_flow.Flow("flow").add(sample_tasks.Echo("echo", provides="echoed"))
            with pytest.raises(exc.StorageFailure, match=f"process {stopped.pid} .* is stopped"):
                run(flow, backend=place, store={"value": 1}).end()
            stopped.send_signal(signal.SIGCONT)
            assert run(flow, backend=place, store={"value": 1}).end() == states.SUCCESS
            assert stopped.wait(60) == 0
        finally:
            stopped.kill()


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


# -- disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Path of a file system of one megabyte."""
    with disks.small_disk(tmp_path / "disk", "1m") as path:
        yield path


@pytest.mark.parametrize("scheme", ["dir", "sqlite"])
def test_worker_results_stay_in_ledger_while_disk_of_store_is_full(
    small_disk: Path, tmp_path: Path, scheme: str
) -> None:
    """The engine retires no result that it could not save. The next run repeats no task."""
    disk = f"{small_disk}/store" if scheme == "dir" else f"/{small_disk}/store.db"
    broker = f"filesystem://{tmp_path}/broker"
    flow = linear_flow.Flow("flow")
    for number in range(12):
        flow.add(audited_tasks.Large(f"large{number}", provides=f"large{number}"))
    with contextlib.ExitStack() as stack:
        stack.enter_context(workers.worker_in_thread(broker, audited_tasks.Large))
        backend = stack.enter_context(backends.backend(f"{scheme}://{disk}"))
        backend.write_pause = 0.05
        book, detail = models.LogBook("book"), models.FlowDetail("flow", uuid="flow")
        book.add(detail)
        with contextlib.closing(backend.get_connection()) as connection:
            connection.save_logbook(book)

            def load() -> Any:
                return engines.load(
                    flow, store={"folder": str(tmp_path), "value": 1}, backend=backend,
                    flow_detail=connection.get_flow_details("flow"),
                    engine="worker-based", url=broker,
                )  # fmt: skip

            with pytest.raises(exc.StorageFailure):
                load().run()
            ran = len(lines(tmp_path))
            assert 0 < ran < 12
            subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
            again = load()
            again.run()
            assert again.storage.get_flow_state() == states.SUCCESS
        for number in range(12):
            assert len(audited_tasks.runs(tmp_path, f"large{number}")) == 1


# -- threads


@pytest.mark.slow
def test_worker_with_busy_threads_is_not_lost(redis_url: str, tmp_path: Path) -> None:
    """Both threads compute for longer than `worker_expiry`."""
    flow = unordered_flow.Flow("flow")
    flow.add(*(audited_tasks.Busy(f"busy{n}", provides=f"busy{n}") for n in range(2)))
    words = ["--url", str(redis_url), "--topic", "t", "--threads", "2"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            workers.workers(tmp_path, *words, "--tasks", "tests.support.audited_tasks")
        )
        executor = WorkerTaskExecutor("e", "default", ["t"], url=str(redis_url), worker_expiry=6)
        stack.callback(executor.stop)
        executor.wait_for_workers(1, 60)
        store = {"folder": str(tmp_path), "value": 1, "nap": 14.0}
        started = run(flow, store=store, engine="worker-based", executor=executor)
        assert started.end() == states.SUCCESS
        assert len(lines(tmp_path)) == 2
