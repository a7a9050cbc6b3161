"""Flows with Celery tasks while a broker, result store or engine is killed."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.celery.flows import WIDE, begun
from tests.celery.peers import NAME, Peer, noted
from tests.support import brokers, python, workers
from tests.support.workers import until
from wbengine import engines, exceptions
from wbengine.interop.celery import _reconnecting
from wbengine.interop.celery.task import CeleryTask
from wbengine.persistence import backends


def resting(url: str, backend: str, path: Path, number: int, **options: Any) -> Any:
    flow = WIDE("f")
    for n in range(number):
        given = {"seconds": 0.03, "path": str(path)}
        task = CeleryTask(
            f"{NAME}.rest", url, f"t{n}", args=("seconds", "path"), inject=given,
            result_backend=backend, **options,
        )  # fmt: skip
        flow.add(task)
    return flow


# (broker, results, killed server).  A killed Redis loses messages that it has delivered to a
# Celery worker; a killed RabbitMQ loses messages in memory, such as results.  The engine has to
# send those tasks again.
KILLED = [
    ("redis", "redis", "broker"),
    pytest.param("rabbitmq", "redis", "results", marks=pytest.mark.slow),
    pytest.param("rabbitmq", "rpc", "broker", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("kind", "results", "who"), KILLED)
def test_flow_completes_after_broker_or_result_store_is_killed(
    kind: str,
    results: str,
    who: str,
    tmp_path: Path,
    celery: Any,
    private: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server restarts while 100 tasks are pending."""
    server = private(kind)
    store = private("redis") if results == "redis" else None
    backend = "rpc://" if store is None else store.url("7")
    killed = store if who == "results" else server
    lossy = kind == "redis" or store is None
    options: dict[str, Any] = {"timeout": 8.0, "retries": 12} if lossy else {}
    path = tmp_path / "ran"
    flow = resting(server.url(), backend, path, 100, **options)
    # Otherwise Celery's worker receives prefetched tasks again only after an hour.
    soon = {"visibility_timeout": 2, "unacked_restore_interval": 1} if kind == "redis" else {}
    conf: dict[str, Any] = {"backend": backend, "broker_transport_options": soon}
    # Otherwise the worker loses results of tasks that end while the store is down.
    conf["result_backend_always_retry"] = True
    conf["task_acks_late"] = True
    with contextlib.ExitStack() as stack:
        working = celery.worker(server.url(), "threads", concurrency=2, **conf)
        worker = stack.enter_context(working)
        engine = engines.load(flow, engine="parallel")
        running = threading.Thread(target=engine.run, daemon=True)
        running.start()
        until(lambda: len(begun(path)) >= 10)
        killed.kill()
        until(lambda: "cannot be re" in caplog.text)
        # Celery's worker may stop consuming after a failed acknowledgement, so another worker
        # replaces it.
        worker.kill()
        killed.start()
        another = celery.worker(server.url(), "threads", name="another", concurrency=2, **conf)
        stack.enter_context(another)
        running.join(100)
        assert not running.is_alive(), worker.text[-3000:]
        assert set(engine.storage.fetch_all()) == set()
        assert {engine.storage.get(f"t{n}") for n in range(100)} == {0.03}


@pytest.fixture(scope="module")
def private() -> Iterator[Any]:
    """Start brokers that tests of this module may kill."""
    with contextlib.ExitStack() as stack:
        servers: dict[str, Any] = {}

        def get(kind: str) -> Any:
            if kind not in servers:
                start: Any = getattr(brokers, kind)
                servers[kind] = stack.enter_context(start())
            servers[kind].mend()
            return servers[kind]

        yield get


def interrupted(
    worker: Peer,
    folder: Path,
    url: str,
    backend: str,
    queue: str,
    ran: int,
    kind: str = "plain",
    by: signal.Signals = signal.SIGKILL,
) -> str:
    """Run a flow in another process and end that process after `ran` tasks have started.

    The worker is stopped then, until it receives SIGCONT.
    """
    words = ["-m", "tests.celery.stored_flow", str(folder), url, backend, queue]
    with python.start(
        [*words, "30", "0.05", kind, str(ran)],
        cwd=workers.REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        uuid = process.stdout.readline().strip()
        try:
            # the worker stops itself after writing this file: SIGCONT must come later
            stops = folder / "ran.stops"
            until(lambda: (stops.exists() and is_stopped(worker)) or process.poll() is not None)
            # only a shared store shows which tasks were sent
            if isinstance(backend, brokers.Place):
                until(lambda: len(noted(backend)) == 30 or process.poll() is not None)
        except BaseException:
            process.kill()
            raise
        worker.signal(signal.SIGSTOP)
        process.send_signal(by)
        errors = process.stderr.read()
    assert process.returncode in (-by, 1), errors
    if by == signal.SIGINT:
        assert errors.rstrip().endswith("KeyboardInterrupt") and errors.count("Traceback") == 1, (
            errors
        )
    return uuid


def is_stopped(worker: Peer) -> bool:
    stat = Path(f"/proc/{worker.pid}/stat").read_text(encoding="utf-8")
    return stat.rpartition(")")[2].split()[0] == "T"


def resumed(folder: Path, uuid: str, kind: str = "parallel") -> Any:
    """Return an engine that resumes the flow."""
    backend = backends.fetch(f"dir://{folder}/store")
    connection = backend.get_connection()
    (detail,) = [flow for book in connection.get_logbooks() for flow in book if flow.uuid == uuid]
    return engines.load_from_detail(detail, backend=backend, engine=kind)


@pytest.mark.parametrize(("kind", "by"), [("plain", signal.SIGINT), ("mapped", signal.SIGKILL)])
def test_resumed_flow_uses_results_of_requests_sent_before(
    tmp_path: Path, celery: Any, broker_servers: Any, kind: str, by: signal.Signals
) -> None:
    """Each task runs once.  Ctrl-C does not wait for tasks on Celery workers."""
    server = broker_servers["redis"]
    with (
        server.place() as url,
        server.place() as store,
        celery.worker(url, "threads", backend=store, concurrency=2) as worker,
    ):
        uuid = interrupted(worker, tmp_path, url, store, "celery", 5, kind, by)
        assert len(begun(tmp_path / "ran")) < 30
        engine = resumed(tmp_path, uuid)
        worker.signal(signal.SIGCONT)
        engine.run()
        fetch = engine.storage.fetch
        rested = fetch("rested") if kind == "mapped" else [fetch(f"r{n}") for n in range(30)]
        assert rested == [0.05] * 30
        assert len(begun(tmp_path / "ran")) == 30, worker.text
        assert engine.storage.record("m" if kind == "mapped" else "t0").attempt == 1


def nothing_left(url: str) -> bool:
    """Return True if the Celery worker has received and acknowledged all messages of a Redis."""
    with redis.Redis.from_url(str(url)) as client:
        return not client.exists("celery", "unacked")


@pytest.mark.parametrize("again", [True, False])
def test_resumed_flow_resends_requests_without_result_if_idempotent(
    tmp_path: Path, celery: Any, broker_servers: Any, again: bool
) -> None:
    """Results over RPC went to the queue of the dead engine."""
    server = broker_servers["redis"]
    with server.place() as url, celery.worker(url, "threads", concurrency=2) as worker:
        uuid = interrupted(worker, tmp_path, url, "rpc://", "celery", 3)
        engine = resumed(tmp_path, uuid)
        for atom, _ in engine.flow.iter_nodes():
            atom.idempotent = again
        if again:
            worker.signal(signal.SIGCONT)
            engine.run()
            assert len(begun(tmp_path / "ran")) > 30
            return
        with pytest.raises((exceptions.WorkerLost, exceptions.WrappedFailure)):
            engine.run()
        failures = engine.storage.get_execute_failures().values()
        known = exceptions.WorkerLost, exceptions.Cancelled
        assert len(failures) >= 20 and all(failure.check(*known) for failure in failures)
        _reconnecting.close_all(30.0)  # revocations have been sent
        worker.signal(signal.SIGCONT)
        until(lambda: nothing_left(url))
        assert len(begun(tmp_path / "ran")) < 30


def test_cancelled_resumed_flow_revokes_pending_tasks(
    tmp_path: Path, celery: Any, broker_servers: Any
) -> None:
    server = broker_servers["redis"]
    with (
        server.place() as url,
        server.place() as store,
        celery.worker(url, "threads", backend=store, concurrency=1) as worker,
    ):
        uuid = interrupted(worker, tmp_path, url, store, "celery", 3)
        engine = resumed(tmp_path, uuid)
        with pytest.raises(exceptions.Cancelled):
            _cancelled(engine)
        _reconnecting.close_all(30.0)  # revocations have been sent
        worker.signal(signal.SIGCONT)
        until(lambda: nothing_left(url))
        assert len(begun(tmp_path / "ran")) < 20


def _cancelled(engine: Any) -> None:
    """Run the engine and cancel it as soon as possible."""
    runs = threading.Thread(target=until, args=(engine.cancel,))
    runs.start()
    try:
        engine.run()
    finally:
        runs.join()
