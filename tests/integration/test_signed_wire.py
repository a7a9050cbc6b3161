"""Fleets with keys: signed messages."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import sample_tasks, signed
from tests.support.brokers import broker_url
from tests.support.workers import until, worker_in_thread
from wbengine import engines
from wbengine import exceptions as exc
from wbengine._security import keys
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based import proxy
from wbengine.engines.worker_based._connections import connecting, queue_counts
from wbengine.engines.worker_based._connections.sender import OutgoingMessage
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.engines.worker_based._messages import notices, worker_commands
from wbengine.engines.worker_based.executor import WorkerTaskExecutor
from wbengine.engines.worker_based.worker import Worker
from wbengine.fleet import client as fleets
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.transports import _encoding
from wbengine.transports._broker import Frame
from wbengine.types.failure import Failure

KINDS = (
    "memory",
    "filesystem",
    "redis",
    "rabbitmq",
    pytest.param("postgresql", marks=pytest.mark.slow),
)
PATIENCE = 60


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return broker_url(request.param, request, tmp_path)


class Files:
    """Key files of one fleet by role."""

    def __init__(self, folder: Path, *, per_role: bool = False, encrypt: bool = False) -> None:
        self.contents = keys.new(per_role=per_role, encrypt=encrypt)
        self._folder = folder
        folder.mkdir()
        for role, content in self.contents.items():
            keys.write(folder / f"{role}.json", content)

    def of(self, role: str) -> Path:
        return self._folder / f"{role if role in self.contents else keys.ANY}.json"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "keys", per_role=True)


@contextlib.contextmanager
def sending(url: str, ring: keys.Keyring | None = None) -> Iterator[Callable[..., None]]:
    """Yield a function that sends messages unchanged, optionally signed with a key ring."""
    made = proxy.Proxy("speaker", "default", url=url, keys=ring)
    thread = threading.Thread(target=made.start, daemon=True)
    thread.start()
    made.wait(PATIENCE)
    try:
        yield lambda envelope: made.send(OutgoingMessage(envelope))
    finally:
        made.stop()
        thread.join(PATIENCE)


def refused_count(side: Worker | WorkerTaskExecutor) -> int:
    counts = side.counts if isinstance(side, Worker) else side.ignored
    return counts.get("untrusted", 0)


@contextlib.contextmanager
def fleet(url: str, files: Files, **options: Any) -> Iterator[tuple[WorkerTaskExecutor, Worker]]:
    """Yield an executor and the worker that it has discovered."""
    executor = WorkerTaskExecutor(
        "victim", "default", url=url, keys=files.of(keys.ENGINE), **options
    )
    with worker_in_thread(url, sample_tasks, keys=files.of(keys.WORKER), threads_count=1) as worker:
        try:
            assert executor.wait_for_workers(1, PATIENCE) == 0
            yield executor, worker
        finally:
            executor.stop()


@contextlib.contextmanager
def running(executor: WorkerTaskExecutor, folder: Path, *more: Any) -> Iterator[Any]:
    """Run a flow whose first task blocks until the end of the block; yield its engine."""
    store = {"started": str(folder / "started"), "release": str(folder / "release"), "value": 5}
    flow = unordered_flow.Flow("f").add(sample_tasks.WaitFor(provides="seen"), *more)
    engine = engines.load(flow, store=store, engine="worker-based", executor=executor)

    def run() -> None:
        with contextlib.suppress(exc.WorkerLost):
            engine.run()

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: executor.requests("started"))
    try:
        yield engine
    finally:
        (folder / "release").touch()
        thread.join(PATIENCE)


@pytest.mark.parametrize("how", ["shared", "per role", "encrypted"])
def test_signed_flow_runs_and_worker_obeys_commands(url: str, tmp_path: Path, how: str) -> None:
    files = Files(tmp_path / "keys", per_role=how == "per role", encrypt=how == "encrypted")
    flow = linear_flow.Flow("f").add(
        sample_tasks.Echo(provides="seen"), sample_tasks.Add(provides="sum")
    )
    with fleet(url, files) as (executor, worker):
        engine = engines.load(
            flow, store={"value": 5, "x": 1, "y": 2}, engine="worker-based", executor=executor
        )
        engine.run()
        assert (engine.storage.fetch("seen"), engine.storage.fetch("sum")) == (5, 3)
        assert list(executor.ping()) == [worker.identity]
        with fleets.Fleet(url=url, keys=files.of(keys.OPERATOR)) as view:
            (seen,) = view.workers(least=1, wait=PATIENCE)
            assert seen.name == worker.identity
            view.control("suspend", [worker.identity])
            until(lambda: worker._server.suspended)
        assert refused_count(executor) == refused_count(worker) == 0


def test_command_unsigned_or_signed_by_worker_is_refused(url: str, files: Files) -> None:
    with fleet(url, files) as (executor, worker):
        for count, ring in enumerate((None, keys.Keyring.load(files.of(keys.WORKER))), 1):
            with sending(url, ring) as say:
                say(worker_commands.control("drain", worker.identity))
                until(lambda count=count: refused_count(worker) >= count)
        assert worker.trouble is None
        executor.control("drain", worker.identity)
        until(lambda: worker.trouble == "the worker is stopping")


def test_replayed_command_is_refused(url: str, files: Files) -> None:
    ring = keys.Keyring.load(files.of(keys.OPERATOR))
    with fleet(url, files) as (_, worker), sending(url, ring) as say:
        order = worker_commands.control("suspend", worker.identity)
        say(order)
        until(lambda: worker._server.suspended)
        worker.resume()
        say(order)
        until(lambda: refused_count(worker) == 1)
        assert not worker._server.suspended


def test_unsigned_cancellation_is_refused(url: str, files: Files, tmp_path: Path) -> None:
    with fleet(url, files) as (executor, worker):
        with running(executor, tmp_path) as engine, sending(url) as say:
            (request,) = executor.requests("started")
            for message in worker_commands.cancellations([(request.id, 1)], worker.identity):
                say(message)
            until(lambda: refused_count(worker) == 1)
        assert engine.storage.fetch("seen") == "released"


@pytest.mark.parametrize("state", [pr.SUCCESS, pr.FAILURE])
def test_unsigned_reply_is_refused(url: str, files: Files, tmp_path: Path, state: str) -> None:
    failure = pr.failure_to_dict(Failure.from_exception(ValueError("forged")))
    result = failure if state == pr.FAILURE else "forged"
    body = {"state": state, "data": {"result": result}}
    with fleet(url, files) as (executor, worker):
        with running(executor, tmp_path) as engine, sending(url) as say:
            (request,) = executor.requests("started")
            headers = {hd.WBE_VERSION: "1", hd.WBE_EPOCH: 1, hd.WBE_WORKER: worker.identity}
            say(env.Envelope(pr.RESPONSE, body, "victim", request.id, headers=headers))
            until(lambda: refused_count(executor) == 1)
            assert [each.state for each in executor.requests()] == ["started"]
        assert engine.storage.fetch("seen") == "released"


def test_unsigned_heartbeat_is_refused(url: str, files: Files) -> None:
    """A forged heartbeat could remove a live worker or announce a missing one."""
    told = {hd.WBE_VERSION: "1", hd.WBE_STATE: notices.STOPPED}
    with fleet(url, files) as (executor, worker), sending(url) as say:
        headers = {**told, hd.WBE_WORKER: worker.identity}
        say(env.Envelope(pr.NOTIFY, {"topic": "t", "tasks": []}, "victim", headers=headers))
        until(lambda: refused_count(executor) == 1)
        assert [each.identity for each in executor.workers()] == [worker.identity]


def test_forged_copy_of_request_is_refused_and_real_one_runs(
    url: str, files: Files, tmp_path: Path
) -> None:
    """The worker may have claimed the row of the real request; it releases the claim."""
    echo = sample_tasks.Echo("echo", provides="echoed")
    with fleet(url, files) as (executor, worker):
        with running(executor, tmp_path, echo) as engine, sending(url) as say:
            until(lambda: executor.requests("queued"))
            say(_forged_copy(executor))
            until(lambda: _waiting(executor, worker) >= 2)
        assert refused_count(worker) == 1
        assert engine.storage.fetch("echoed") == 5
        assert engine.storage.get_flow_state() == "SUCCESS"


def _forged_copy(executor: Any) -> env.Envelope:
    """Return a copy of the queued request with other arguments, which is delivered first."""
    (request,) = executor.requests("queued")
    (real,) = [each for each in executor._tracker.requests.unfinished() if each.id == request.id]
    forged = real.envelope(
        "victim", executor._options, extended=True, ledger=executor._tracker.ledger
    )
    forged.body = {**forged.body, "arguments": {"value": "forged"}}
    forged.priority = 9
    return forged


def _waiting(executor: WorkerTaskExecutor, worker: Worker) -> int:
    """Count the requests that wait, and those that the worker prefetched and refused."""
    target = executor._proxy.target
    with contextlib.closing(connecting.reach_soon(target, 5)) as connection:
        found = queue_counts.count(connection, target, "default", list(worker.queues.values()))
    return sum(each.messages for each in found) + 2 * refused_count(worker)


def test_unsigned_command_is_accepted_without_keys(url: str) -> None:
    """This is the control case of the other tests."""
    executor = WorkerTaskExecutor("victim", "default", url=url)
    with worker_in_thread(url, sample_tasks) as worker, sending(url) as say:
        say(worker_commands.control("suspend", worker.identity))
        until(lambda: worker._server.suspended)
    executor.stop()


def test_signed_command_is_accepted_without_keys(url: str, files: Files) -> None:
    """Processes of a fleet receive their keys one after another."""
    executor = WorkerTaskExecutor("e", "default", url=url, keys=files.of(keys.ENGINE))
    with worker_in_thread(url, sample_tasks) as worker:
        executor.start()
        executor.control("suspend", worker.identity)
        until(lambda: worker._server.suspended)
        executor.stop()


def test_unsigned_messages_are_accepted_until_time_in_key_file(
    url: str, files: Files, tmp_path: Path
) -> None:
    content = {**files.contents[keys.ENGINE], "accept_unsigned_until": time.time() + 600}
    path = tmp_path / "lenient.json"
    keys.write(path, content)
    flow = linear_flow.Flow("f").add(sample_tasks.Echo(provides="seen"))
    with worker_in_thread(url, sample_tasks):
        engine = engines.load(
            flow, store={"value": 5}, engine="worker-based", url=url, keys=str(path)
        )
        engine.run()
        assert engine.storage.fetch("seen") == 5


def test_unsigned_result_in_ledger_is_refused(
    tmp_path: Path, rowless_url: str, files: Files
) -> None:
    """A writer of the ledger could otherwise forge the result of any task."""
    url, ledger = rowless_url, f"sqlite:///{tmp_path}/ledger.db"
    executor = WorkerTaskExecutor(
        "victim", "default", url=url, ledger=ledger, keys=files.of(keys.ENGINE)
    )
    with worker_in_thread(url, sample_tasks, ledger=ledger, keys=files.of(keys.WORKER)) as worker:
        executor.wait_for_workers(1, PATIENCE)
        with running(executor, tmp_path) as engine:
            (request,) = executor.requests("started")
            forged = signed.envelope("response")
            forged.headers[hd.WBE_WORKER] = worker.identity
            assert worker._runner.ledger is not None
            assert worker._runner.ledger.finish(request.id, 1, worker.identity, env.freeze(forged))
        executor.stop()
    assert engine.storage.get_flow_state() == "REVERTED"


def test_key_file_of_another_role_is_rejected(tmp_path: Path, files: Files) -> None:
    url = f"memory://{tmp_path.name}"
    with pytest.raises(ValueError, match="must be of role 'engine', got role 'worker'"):
        WorkerTaskExecutor("e", "default", url=url, keys=files.of(keys.WORKER))
    with pytest.raises(ValueError, match="must be of role 'worker', got role 'engine'"):
        Worker("default", "t", [sample_tasks], url=url, keys=files.of(keys.ENGINE))


def test_interop_rejects_keys(tmp_path: Path, files: Files) -> None:
    options = {"url": f"memory://{tmp_path.name}", "interop": "taskflow"}
    with pytest.raises(ValueError, match="does not support keys"):
        WorkerTaskExecutor("e", "x", ["t"], keys=files.of(keys.ENGINE), **options)
    with pytest.raises(ValueError, match="does not support keys"):
        Worker("x", "t", [sample_tasks], keys=files.of(keys.WORKER), **options)


def test_keys_are_read_from_environment(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(keys.VARIABLE, str(files.of(keys.ENGINE)))
    url = f"memory://{tmp_path.name}"
    assert WorkerTaskExecutor("e", "default", url=url).signer is not None
    assert WorkerTaskExecutor("e", "default", url=url, keys="none").signer is None
    plain = WorkerTaskExecutor("e", "x", ["t"], url=url, interop="taskflow")
    assert plain.signer is None
    files.of(keys.ENGINE).chmod(0o644)
    with pytest.raises(exc.InvalidFormat, match="chmod 600"):
        WorkerTaskExecutor("e", "default", url=url)


def test_keys_are_rotated_while_tasks_run(url: str, tmp_path: Path, monkeypatch: Any) -> None:
    """Key files are written before their new key is used, so no message is refused."""
    monkeypatch.setattr(keys, "CHECK_SECONDS", 0.05)
    files = Files(tmp_path / "keys", per_role=True)
    flow = unordered_flow.Flow("f").add(
        *(sample_tasks.Echo(f"e{n}", provides=f"s{n}") for n in range(60))
    )
    first_uses: list[float] = []
    with fleet(url, files) as (executor, worker):
        contents, over = files.contents, threading.Event()

        def rotate() -> None:
            nonlocal contents
            while not over.is_set():
                now = time.time()
                # Writing the files takes less than two seconds, even on a busy host.
                contents = keys.rotated(contents, now + 2, now + 60, now)
                for role, content in contents.items():
                    keys.write(files.of(role), content, replace=True)
                first_uses.append(now + 2)
                over.wait(0.2)

        def rotations_in_use() -> int:
            return sum(moment < time.time() for moment in first_uses)

        thread = threading.Thread(target=rotate)
        thread.start()
        try:
            while rotations_in_use() < 4:
                engine = engines.load(
                    flow, store={"value": 5}, engine="worker-based", executor=executor
                )
                engine.run()
                assert engine.storage.get_flow_state() == "SUCCESS"
                over.wait(0.1)  # several flows run with each key
        finally:
            over.set()
            thread.join()
        assert len(json.loads(files.of(keys.ENGINE).read_text())["keys"]) > 3
        assert refused_count(executor) == refused_count(worker) == 0


@pytest.mark.parametrize("kind", ["filesystem", "redis", "postgresql"])
def test_request_with_label_of_another_request_is_refused(
    kind: str, request: pytest.FixtureRequest, files: Files, tmp_path: Path
) -> None:
    """Both requests are signed, but the claimed row is not that of the request."""
    url = broker_url(kind, request, tmp_path)
    echoes = [sample_tasks.Echo(name, provides=name) for name in ("one", "two")]
    with fleet(url, files) as (executor, worker):
        started: list[str] = []
        begin = worker._server._start

        def start(job: Any) -> Any:
            started.append(job.id)
            return begin(job)

        worker._server._start = start  # type: ignore[method-assign]
        with running(executor, tmp_path, *echoes) as engine:
            until(lambda: len(executor.requests("queued")) == 2)
            ids = [each.id for each in executor.requests("queued")]
            one, two = (each for each in executor._tracker.requests.unfinished() if each.id in ids)
            with contextlib.closing(connecting.reach_soon(executor._proxy.target, 5)) as broker:
                copy, other = (
                    each.envelope(
                        "victim", executor._options, extended=True, ledger=executor._tracker.ledger
                    )
                    for each in (one, two)
                )
                copy.signer = executor._proxy.signer
                data = _encoding.seal(copy, "default")
                swapped = _encoding.label(data, other.headers, other.correlation_id)
                queue = next(iter(worker.queues.values()))
                assert list(broker.publish_many([Frame("", queue, 9, swapped)])) == [True]
        assert engine.storage.get_flow_state() == "SUCCESS"
        assert sorted(started[-2:]) == sorted(ids)
        assert len(started) == len(set(started))


@pytest.mark.parametrize("pause", [0.3, 1.0])
def test_real_request_runs_although_forged_copy_is_being_verified(
    pause: float, redis_url: Any, files: Files, tmp_path: Path
) -> None:
    """Another worker acknowledges the message, because its row is claimed."""
    url = str(redis_url)
    echo = sample_tasks.Echo("echo", provides="echoed")
    with fleet(url, files) as (executor, worker), contextlib.ExitStack() as stack:
        looks = threading.Event()
        verify = worker._proxy.signer.verify  # type: ignore[union-attr]

        def slowly(message: Any, audience: Any) -> bytes:
            try:
                return verify(message, audience)
            except exc.NotTrusted:
                looks.set()
                time.sleep(pause)
                raise

        worker._proxy.signer.verify = slowly  # type: ignore[union-attr, method-assign]
        with running(executor, tmp_path, echo) as engine, sending(url) as say:
            until(lambda: executor.requests("queued"))
            say(_forged_copy(executor))
            until(lambda: _waiting(executor, worker) >= 2)
            (tmp_path / "release").touch()
            assert looks.wait(PATIENCE)
            other = worker_in_thread(url, sample_tasks, keys=files.of(keys.WORKER), threads_count=1)
            stack.enter_context(other)
            until(lambda: not (executor.requests("queued") or executor.requests("started")))
        assert engine.storage.get_flow_state() == "SUCCESS"
        assert engine.storage.fetch("echoed") == 5
