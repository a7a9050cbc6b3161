"""Owners of a flow that stop at a critical point and continue after another engine took over."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.seams import ledgers
from tests.support import frozen_engines, interrupted, python, workers
from tests.support import resuming_tasks as tasks
from tests.support.brokers import broker_url
from tests.support.messages import Message
from wbengine import engines, states, task
from wbengine import exceptions as exc
from wbengine._calls import invocation
from wbengine._concurrency import crash_points
from wbengine._runtime import control
from wbengine.engines.worker_based import executor as executors
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based import types
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.engines.worker_based._requests import effects as fx
from wbengine.patterns import linear_flow
from wbengine.persistence.backends import _memory


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    yield
    crash_points.install(None)


class Guard:
    """Lease check of an engine."""

    def __init__(self) -> None:
        self.lost = False

    def check(self) -> None:
        if self.lost:
            raise exc.LeaseLost("somebody else took it over")


class Results(queue.SimpleQueue[Any]):
    """Queue of task results."""

    def __call__(self, call: invocation.Invocation, outcome: invocation.Outcome) -> None:
        self.put(outcome.value)


def run_in_thread(do: Callable[[], object], seconds: float | None = None) -> threading.Thread:
    """Call `do` in another thread, and wait for its end, or for `seconds`."""
    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    thread.join(60 if seconds is None else seconds)
    assert seconds is not None or not thread.is_alive()
    return thread


def new_call(atom: Any, folder: Path, uuid: str = "atom") -> invocation.Invocation:
    return invocation.Invocation(
        atom, "execute", uuid, 1, {"folder": str(folder)}, flow_uuid="flow"
    )


@pytest.fixture
def results() -> Results:
    return Results()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Any]:
    """Worker that has one slot."""
    url = f"memory://{tmp_path.name}"
    with workers.worker_in_thread(url, tasks, threads_count=1) as started:
        yield started


@pytest.fixture
def executor(worker: Any, tmp_path: Path) -> Iterator[Any]:
    """Executor of this worker. At the end, gated tasks continue."""
    url = f"memory://{tmp_path.name}"
    found = executors.WorkerTaskExecutor("e", "default", url=url)
    found.wait_for_workers(1, 60)
    yield found
    crash_points.install(None)
    found.disown()
    (tmp_path / "gate-execute").touch()
    found.stop()


def submit(
    executor: Any, atom: Any, folder: Path, uuid: str = "atom", done: Any = lambda *_: None
) -> invocation.Invocation:
    call = new_call(atom, folder, uuid)
    executor.submit(call, done)
    return call


def submit_gated(executor: Any, folder: Path, done: Any = lambda *_: None) -> invocation.Invocation:
    """Submit a task, and wait until it occupies the slot of the worker."""
    call = submit(executor, tasks.Gated("a"), folder, "a", done)
    workers.until(lambda: tasks.runs(folder) == ["execute-a"])
    return call


# -- publishing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broker", "point"),
    [
        ("memory", "executor.before-open"),
        ("rowless", "executor.before-open"),
        ("rowless", "executor.after-open"),
    ],
)
def test_request_published_after_lease_is_lost_is_not_run(
    tmp_path: Path, broker: str, point: str, request: pytest.FixtureRequest
) -> None:
    """In the meantime another engine took over the flow and completed the same attempt."""
    url, guard = broker_url(broker, request, tmp_path), Guard()
    place = "memory://rows" if broker == "rowless" else None
    executor = executors.WorkerTaskExecutor("e", "default", url=url, ledger=place)

    def freeze(name: str) -> None:
        if name == point:
            guard.lost = True
            ledger = executor._writer.ledger
            assert ledger is not None
            for request_id in ledger.ids():
                ledger.drop(request_id)

    with workers.worker_in_thread(url, tasks, ledger=place) as held:
        executor.guard("flow", guard.check)
        executor.wait_for_workers(1, 60)
        crash_points.install(freeze)
        submit(executor, tasks.Plain("p"), tmp_path)
        assert executor._proxy.flush(60)
        executor.disown()
        executor.stop()
    assert guard.lost and not held.counts
    assert tasks.runs(tmp_path) == []


def test_row_opened_late_by_old_owner_does_not_block_the_next_owner(tmp_path: Path) -> None:
    """The next owner has read that no row exists, and is about to open one."""
    url, ended = "memory://late-row", queue.SimpleQueue[Any]()
    executor = executors.WorkerTaskExecutor("e", "default", url=url)

    def thaw(name: str) -> None:
        if name == "executor.before-open":
            assert executor._writer.ledger is not None
            executor._writer.ledger.open(call.ticket.id, 1)

    atom = tasks.Plain("p")
    call = invocation.Invocation(
        atom, "execute", "atom", 1, {"folder": str(tmp_path)}, epoch=2048, recovered=True
    )
    with workers.worker_in_thread(url, tasks):
        executor.wait_for_workers(1, 60)
        crash_points.install(thaw)
        executor.submit(call, lambda _, outcome: ended.put(outcome.value))
        assert ended.get(timeout=60) == "done-p"
        executor.retire([call])
        executor.stop()
    assert tasks.runs(tmp_path) == ["execute-p"]


def test_withdraw_does_not_revoke_row_of_the_next_owner(executor: Any, tmp_path: Path) -> None:
    """The row that the old owner is about to revoke was reopened by the next owner."""
    ledger = executor._writer.ledger

    def freeze(name: str) -> None:
        if name == "executor.before-revoke":
            (request_id,) = {call.ticket.id} & ledger.ids()
            assert ledger.revoke(request_id)
            ledger.open(request_id, 2048)

    executor.guard("flow", Guard().check)
    submit_gated(executor, tmp_path)
    call = submit(executor, tasks.Plain("b"), tmp_path, "b")
    assert executor._proxy.flush(60)
    crash_points.install(freeze)
    assert executor.withdraw() == []
    crash_points.install(None)
    reopened = ledgers.Row(call.ticket.id, 2048, ledgers.ROW_OPEN)
    assert ledger.state(call.ticket.id) == reopened


def test_cancellation_of_old_owner_is_not_published(
    executor: Any, worker: Any, tmp_path: Path
) -> None:
    """The next owner has adopted the running request, with the same epoch."""
    guard = Guard()
    executor.guard("flow", guard.check)
    call = submit_gated(executor, tmp_path)
    guard.lost = True
    executor.cancel([call])
    other = submit(executor, tasks.Plain("b"), tmp_path, "b")
    assert executor._proxy.flush(60) and other.ticket.publish_count == 0
    # The worker handles this command after the cancellation, if there is one.
    assert executor.ping(timeout=60)
    (job,) = worker._server._job_table.jobs.values()
    assert not job.cancelled


# -- resuming ------------------------------------------------------------------------------------


def raise_fence(folder: Path, engine: Any, number: int) -> None:
    fence = ledgers.Fence.of(engine.storage.flow_uuid, number)
    with contextlib.closing(ledgers.open_ledger(f"dir://{folder / 'broker'}")) as ledger:
        ledger.raise_fence(fence)


def test_run_below_the_fence_continues_if_it_owns_the_flow(tmp_path: Path) -> None:
    """The store was restored from a backup of the time before later runs."""
    with workers.worker_in_thread(f"filesystem://{tmp_path / 'broker'}", tasks):
        engine = tasks.engine_of("wide", tmp_path)
        engine.run()
        raise_fence(tmp_path, engine, 1000)
        engine.reset()
        engine.run()
    assert engine.storage.get_flow_state() == states.SUCCESS
    assert len(tasks.runs(tmp_path)) == 12


def test_run_below_the_fence_ends_if_it_lost_the_flow(tmp_path: Path) -> None:
    """Another engine takes over the flow and raises the fence before this one does."""
    with workers.worker_in_thread(f"filesystem://{tmp_path / 'broker'}", tasks):
        engine = tasks.engine_of("wide", tmp_path)
        engine.run()
        engine.reset()

        def take_over(name: str) -> None:
            if name == "executor.before-fence":
                with contextlib.closing(tasks.backend_in(tmp_path).get_connection()) as connection:
                    uuid = engine.storage.flow_uuid
                    epoch = connection.get_lease(uuid).epoch
                    connection.acquire_lease(uuid, "elsewhere", 60, dead=epoch)
                raise_fence(tmp_path, engine, epoch + 1)

        crash_points.install(take_over)
        with pytest.raises(exc.LeaseLost):
            engine.run()
    assert len(tasks.runs(tmp_path)) == 6


# -- receiving -----------------------------------------------------------------------------------


def deliver_reply(executor: Any, call: invocation.Invocation | None, epoch: int) -> Any:
    """Deliver a final reply to a request of this engine (`call`) or of another one."""
    message: Any = Message(pr.RESPONSE)
    request_id = call.ticket.id if call is not None else "of-somebody-else"
    message.properties["correlation_id"] = request_id
    message.delivery_info = {}
    message.headers = {hd.WBE_VERSION: hd.VERSION, hd.WBE_WORKER: "w", hd.WBE_EPOCH: epoch}
    executor._events.on_response({"state": pr.SUCCESS, "data": {"result": 1}}, message)
    assert executor._proxy.flush(60)
    return message


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("how", ["lost", "disowned"])
def test_reply_to_next_owner_of_the_same_queue_is_not_acknowledged(known: bool, how: str) -> None:
    """Both owners read one queue. A reply that is not acknowledged is delivered again."""
    guard = Guard()
    executor = executors.WorkerTaskExecutor("e", "default", url=f"memory://names-{known}-{how}")
    executor.guard("flow", guard.check, sole=True)
    executor.start()
    call = submit(executor, tasks.Plain("p"), Path()) if known else None
    assert deliver_reply(executor, call, 2048).done == ["ack"]
    if how == "lost":
        guard.lost = True
        assert deliver_reply(executor, call, 2048).done == []
    if how == "disowned":
        executor.disown()
        assert deliver_reply(executor, None, 2048).done == []
    executor.stop()
    executor.unguard("flow")


def test_lost_lease_of_one_flow_does_not_stop_acknowledging_replies() -> None:
    guard = Guard()
    executor = executors.WorkerTaskExecutor("e", "default", url="memory://shared-names")
    executor.guard("flow", guard.check)
    executor.start()
    guard.lost = True
    executor.disown("flow")
    assert deliver_reply(executor, None, 1).done == ["ack"]
    executor.stop()


# -- suspending ----------------------------------------------------------------------------------


def test_suspend_during_loss_of_lease_does_not_deadlock(executor: Any, tmp_path: Path) -> None:
    """One thread withdraws requests and detects the lost lease, while another one suspends."""
    signal = control.StopSignal(executor, queue.SimpleQueue(), control.InFlight(executor))
    first, armed = threading.Event(), threading.Event()
    suspending = threading.Thread(target=signal.suspend, daemon=True)
    withdrawing = threading.Thread(target=executor.withdraw, daemon=True)

    def suspends() -> bool:
        """Return whether the other thread has acquired the lock of the signal."""
        if not signal._lock.acquire(blocking=False):
            return True
        signal._lock.release()
        return not suspending.is_alive()

    def check() -> None:
        if armed.is_set() and not first.is_set():
            first.set()
            suspending.start()
            workers.until(suspends)
            signal.disown()
            raise exc.LeaseLost("somebody else took it over")

    executor.guard("flow", check)
    submit_gated(executor, tmp_path)
    submit(executor, tasks.Gated("b"), tmp_path, "b")
    assert executor._proxy.flush(60)
    armed.set()
    withdrawing.start()
    withdrawing.join(60)
    suspending.join(60)
    assert not withdrawing.is_alive() and not suspending.is_alive()


def test_second_ctrl_c_leaves_running_task_to_the_next_engine(tmp_path: Path) -> None:
    """The first Ctrl-C suspends and waits for running tasks; the second one does not wait."""
    main = threading.get_ident()
    engine = tasks.engine_of("gated", tmp_path)
    book = engine.executor._tracker

    def interrupt_twice() -> None:
        workers.until(lambda: tasks.runs(tmp_path) == ["execute-a"])
        signal.pthread_kill(main, signal.SIGINT)
        workers.until(lambda: any(each.waiters for each in book.requests.unfinished()))
        signal.pthread_kill(main, signal.SIGINT)

    with workers.worker_in_thread(f"filesystem://{tmp_path / 'broker'}", tasks) as held:
        thread = threading.Thread(target=interrupt_twice)
        thread.start()
        with interrupted.waking_main_thread(), pytest.raises(KeyboardInterrupt):
            engine.run()
        thread.join()
        again = tasks.engine_of("gated", tmp_path)
        running = threading.Thread(target=again.run)
        running.start()
        jobs = held._server._job_table.jobs
        workers.until(lambda: any(job.ask_number > 1 for job in jobs.values()))
        (tmp_path / "gate-execute").touch()
        running.join(60)
    assert tasks.runs(tmp_path) == ["execute-a", "execute-b"]
    assert again.storage.get_flow_state() == states.SUCCESS
    assert not ledgers.rows(tmp_path / "broker")


def test_worker_does_not_publish_result_of_reopened_request(
    executor: Any, worker: Any, results: Results, tmp_path: Path
) -> None:
    """The engine that now reads the queue must not take this reply for its result."""
    call = submit_gated(executor, tmp_path, results)
    assert executor._writer.ledger.reopen(call.ticket.id, 2048) is None
    (tmp_path / "gate-execute").touch()
    workers.until(lambda: worker.counts.get("fenced"))
    assert worker._proxy.flush(60) and executor._proxy.flush(10)
    executor.disown()
    executor.stop()
    assert results.empty()


# -- writing -------------------------------------------------------------------------------------


class Step(task.Task):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.runs = 0

    def execute(self) -> str:
        self.runs += 1
        return self.name


def test_write_of_old_owner_is_rejected_and_next_uses_new_records() -> None:
    """During one write another engine takes over the flow and completes it."""
    backend, others = _memory.MemoryBackend(), list[Any]()
    engine = engines.load(linear_flow.Flow("f").add(Step("a")), backend=backend)
    engine.prepare()

    def atom() -> Any:
        with backend.get_connection() as connection:
            (found,) = connection.get_flow_details(engine.storage.flow_uuid)
        return found

    def run_elsewhere(name: str) -> None:
        if name == "storage.before-save" and not others:
            uuid = engine.storage.flow_uuid
            with backend.get_connection() as connection:
                connection.acquire_lease(
                    uuid, "elsewhere", 0, dead=connection.get_lease(uuid).epoch
                )
                detail = connection.get_flow_details(uuid)
            flow = linear_flow.Flow("f").add(Step("a"))
            others.append(engines.load(flow, flow_detail=detail, backend=backend))
            others[0].run()

    crash_points.install(run_elsewhere)
    with pytest.raises(exc.LeaseLost):
        engine.storage.update_atom_metadata("a", {"lost": 1})
    found = atom()
    assert found.state == states.SUCCESS and "lost" not in found.meta
    engine.storage.update_atom_metadata("a", {"mark": 1})
    found = atom()
    assert found.state == states.SUCCESS and "lost" not in found.meta and found.meta["mark"] == 1
    assert engine.storage.get_atom_state("a") == states.SUCCESS


# Engine processes that are frozen until the next engine has completed their flow.


#: Broker, ledger if it is separate, and point of the freeze.
PLACES = [
    ("filesystem", "", "executor.before-open"),
    ("redis", "", "executor.before-open"),
    ("postgresql", "", "executor.before-open"),
    pytest.param("rabbitmq", "sqlite", "executor.before-open", marks=pytest.mark.slow),
    pytest.param("filesystem", "", "executor.after-open", marks=pytest.mark.slow),
]


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize(("broker", "ledger", "point"), PLACES)
def test_engine_that_continues_after_the_next_one_runs_no_task_again(
    broker: str, ledger: str, point: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The clock of the frozen engine stood still, so it does not see that its lease has expired."""
    url = broker_url(broker, request, tmp_path)
    place = f"{ledger}:///{tmp_path}/ledger.db" if ledger else ""
    words = ["-m", frozen_engines.__name__, "wide", tmp_path, url, place, point]
    with (
        workers.worker_in_thread(url, tasks, **({"ledger": place} if place else {})),
        python.running(words, stdout=python.PIPE, text=True) as frozen,
    ):
        workers.until(lambda: is_stopped(frozen.pid))
        engine = tasks.engine_of("wide", tmp_path, url=url, ledger=place or None, on_busy="wait")
        engine.run()
        assert engine.storage.get_flow_state() == states.SUCCESS
        frozen.send_signal(signal.SIGCONT)
        output, _ = frozen.communicate(timeout=60)
        assert frozen.returncode == frozen_engines.LOST, output
        # Workers have handled the late requests before those of a later flow.
        (tmp_path / "later").mkdir()
        tasks.engine_of("wide", tmp_path / "later", url=url, ledger=place or None).run()
    assert sorted(tasks.runs(tmp_path)) == [f"execute-p{number}" for number in range(6)]


# Interleavings of the threads of one executor.


def test_row_opened_during_a_state_query_is_not_reported_as_lost(
    executor: Any, results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker of the queue is lost while the executor publishes a request."""
    ledger, call = executor._writer.ledger, new_call(tasks.Plain("p"), tmp_path)
    (queue_name,) = {worker.queue for worker in executor.finder.workers()}
    look, looked, started = ledger.states, threading.Event(), threading.Event()

    def slowly(request_ids: Sequence[str]) -> Any:
        rows = look(request_ids)
        if not looked.is_set():
            assert rows == [None]
            looked.set()
            assert started.wait(60)
        return rows

    def lose_another() -> None:
        other = types.TopicWorker("default", (), "other")
        other.queue = queue_name
        executor._events.on_workers(set(), [other])

    def publishing(name: str) -> None:
        if name == "executor.before-open":
            executor._proxy.consumer.call_soon(lose_another)
            assert looked.wait(60)

    monkeypatch.setattr(ledger, "states", slowly)
    crash_points.install(publishing)
    executor.submit(call, results)
    workers.until(lambda: tasks.runs(tmp_path) == ["execute-p"])
    started.set()
    assert results.get(timeout=60) == "done-p"


def test_row_revoked_by_cancel_is_not_reported_as_lost(
    executor: Any, results: Results, tmp_path: Path
) -> None:
    """The row is queried before the tracker records the reason of its removal."""
    submit_gated(executor, tmp_path)
    call = submit(executor, tasks.Plain("b"), tmp_path, "b", results)
    assert executor._proxy.flush(60)
    entry, looking = call.ticket, []

    def look(name: str) -> None:
        if name == "executor.after-revoke":
            do = lambda: executor._requests.apply([fx.Inspect(entry)])  # noqa: E731
            looking.append(run_in_thread(do, 0.2))

    crash_points.install(look)
    executor.cancel([call])
    workers.until(lambda: looking)
    looking[0].join(60)
    outcome = results.get(timeout=60)
    assert outcome.check(exc.Cancelled), outcome


def test_dropped_row_is_not_opened_again_by_a_late_publish(
    executor: Any, results: Results, tmp_path: Path
) -> None:
    """A second copy of a request is being published when the first one completes.

    A copy that still waits in the broker must not get a claim.
    """
    call, ledger = submit_gated(executor, tmp_path, results), executor._writer.ledger
    entry, claims = call.ticket, []
    again = entry.envelope("e", executor._options, extended=True, ledger=ledger.digest)

    def end(name: str) -> None:
        if name == "executor.before-open":
            (tmp_path / "gate-execute").touch()
            assert results.get(timeout=60) == "done-a"
            run_in_thread(lambda: executor.retire([call]))
        elif name == "executor.after-open":
            claims.append(ledger.claim(entry.id, 1, "another"))

    crash_points.install(end)
    executor._requests.apply([fx.Dispatch(entry, 1, again)])
    assert executor._proxy.flush(60)
    assert not any(claim.granted for claim in claims)
    if not tmp_path.joinpath("gate-execute").exists():
        end("executor.before-open")
    assert executor._proxy.flush(60)
    workers.until(lambda: ledger.ids() == set())


@pytest.mark.parametrize("how", ["disown", "withdraw"])
def test_disown_or_withdraw_ends_waiting_for_tasks(
    executor: Any, results: Results, tmp_path: Path, how: str
) -> None:
    submit_gated(executor, tmp_path, results)
    submit(executor, tasks.Plain("b"), tmp_path, "b", results)
    assert executor._proxy.flush(60)
    waiting = run_in_thread(lambda: executor.finish("flow"), 0.1)
    assert waiting.is_alive()
    if how == "disown":
        executor.disown("flow")
    else:
        assert len(executor.withdraw("flow")) == 1
        (tmp_path / "gate-execute").touch()
    waiting.join(60)
    assert not waiting.is_alive()


@pytest.mark.parametrize("how", ["cancel", "withdraw"])
def test_rows_of_flow_with_lost_lease_are_not_revoked(
    executor: Any, results: Results, tmp_path: Path, how: str
) -> None:
    """The next owner of the flow may have read these rows."""
    guard = Guard()
    executor.guard("flow", guard.check)
    submit_gated(executor, tmp_path, results)
    call = submit(executor, tasks.Plain("b"), tmp_path, "b", results)
    assert executor._proxy.flush(60)
    guard.lost = True
    request_id = call.ticket.id
    if how == "cancel":
        executor.cancel([call])
    else:
        assert executor.withdraw("flow") == []
    assert executor._writer.ledger.state(request_id).state == "open"


def test_rejected_request_does_not_delay_the_preceding_one(
    executor: Any, results: Results, tmp_path: Path
) -> None:
    call = new_call(tasks.Plain("p"), tmp_path)
    with pytest.raises(exc.Duplicate):
        executor.submit_many((call, new_call(tasks.Plain("p"), tmp_path)), results)
    assert not isinstance(results.get(timeout=60), Exception) and tasks.runs(tmp_path) == [
        "execute-p"
    ]
