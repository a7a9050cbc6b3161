"""Owners of a flow that stop at a critical point and continue after another engine took over."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.seams import ledgers
from tests.support import resuming_tasks as tasks
from tests.support import workers
from tests.support.brokers import broker_url
from tests.support.messages import Message
from wbengine import engines, states, task
from wbengine import exceptions as exc
from wbengine._calls import invocation
from wbengine._concurrency import crash_points
from wbengine._runtime import control
from wbengine.engines.worker_based import executor as executors
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import headers as hd
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


def submit(executor: Any, atom: Any, uuid: str = "atom", **arguments: Any) -> Any:
    call = invocation.Invocation(atom, "execute", uuid, 1, arguments, flow_uuid="flow")
    executor.submit(call, lambda *_: None)
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
        submit(executor, tasks.Plain("p"), folder=str(tmp_path))
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


def test_withdraw_does_not_revoke_row_of_the_next_owner(tmp_path: Path) -> None:
    """The row that the old owner is about to revoke was reopened by the next owner."""
    url, guard = "memory://frozen-revoking", Guard()
    executor = executors.WorkerTaskExecutor("e", "default", url=url)

    def freeze(name: str) -> None:
        if name == "executor.before-revoke":
            ledger = executor._writer.ledger
            assert ledger is not None
            (request_id,) = {call.ticket.id} & ledger.ids()
            assert ledger.revoke(request_id)
            ledger.open(request_id, 2048)

    with workers.worker_in_thread(url, tasks, threads_count=1):
        executor.guard("flow", guard.check)
        executor.wait_for_workers(1, 60)
        submit(executor, tasks.Gated("a"), "a", folder=str(tmp_path))
        workers.until(lambda: tasks.runs(tmp_path) == ["execute-a"])
        call = submit(executor, tasks.Plain("b"), "b", folder=str(tmp_path))
        assert executor._proxy.flush(60)
        crash_points.install(freeze)
        assert executor.withdraw() == []
        crash_points.install(None)
        assert executor._writer.ledger is not None
        assert executor._writer.ledger.state(call.ticket.id) == ledgers.Row(
            call.ticket.id, 2048, ledgers.ROW_OPEN
        )
        executor.disown()
        (tmp_path / "gate-execute").touch()
        executor.stop()


def test_cancellation_of_old_owner_is_not_published(tmp_path: Path) -> None:
    """The next owner has adopted the running request, with the same epoch."""
    url, guard = "memory://frozen-cancelling", Guard()
    executor = executors.WorkerTaskExecutor("e", "default", url=url)
    with workers.worker_in_thread(url, tasks) as worker:
        executor.guard("flow", guard.check)
        executor.wait_for_workers(1, 60)
        call = submit(executor, tasks.Gated("a"), folder=str(tmp_path))
        workers.until(lambda: tasks.runs(tmp_path) == ["execute-a"])
        guard.lost = True
        executor.cancel([call])
        other = submit(executor, tasks.Plain("b"), "b", folder=str(tmp_path))
        assert executor._proxy.flush(60) and other.ticket.publish_count == 0
        # The worker handles this command after the cancellation, if there is one.
        assert executor.ping(timeout=60)
        (job,) = worker._server._job_table.jobs.values()
        is_cancelled = job.cancelled
        executor.disown()
        (tmp_path / "gate-execute").touch()
        executor.stop()
    assert not is_cancelled


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
    call = submit(executor, tasks.Plain("p"), folder="") if known else None
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


def test_suspend_during_loss_of_lease_does_not_deadlock(tmp_path: Path) -> None:
    """One thread withdraws requests and detects the lost lease, while another one suspends."""
    url = "memory://suspended-and-lost"
    executor = executors.WorkerTaskExecutor("e", "default", url=url)
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

    with workers.worker_in_thread(url, tasks, threads_count=1):
        executor.guard("flow", check)
        executor.wait_for_workers(1, 60)
        submit(executor, tasks.Gated("a"), "a", folder=str(tmp_path))
        workers.until(lambda: tasks.runs(tmp_path) == ["execute-a"])
        submit(executor, tasks.Gated("b"), "b", folder=str(tmp_path))
        assert executor._proxy.flush(60)
        armed.set()
        withdrawing.start()
        withdrawing.join(60)
        suspending.join(60)
        (tmp_path / "gate-execute").touch()
        assert not withdrawing.is_alive() and not suspending.is_alive()
        executor.stop()


def test_second_ctrl_c_leaves_running_task_to_the_next_engine(tmp_path: Path) -> None:
    """The first Ctrl-C suspends and waits for running tasks; the second one does not wait."""
    main = threading.get_ident()
    engine = tasks.engine_of("gated", tmp_path)
    book = engine.executor._tracker

    def interrupt_twice() -> None:
        workers.until(lambda: tasks.runs(tmp_path) == ["execute-a"])
        signal.pthread_kill(main, signal.SIGINT)
        workers.until(
            lambda: any(
                isinstance(each.done, executors._CountedDone) for each in book.requests.unfinished()
            )
        )
        signal.pthread_kill(main, signal.SIGINT)

    with workers.worker_in_thread(f"filesystem://{tmp_path / 'broker'}", tasks) as held:
        thread = threading.Thread(target=interrupt_twice)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
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


def test_worker_does_not_publish_result_of_reopened_request(tmp_path: Path) -> None:
    """The engine that now reads the queue must not take this reply for its result."""
    url, told = "memory://taken-away", queue.SimpleQueue[Any]()
    executor = executors.WorkerTaskExecutor("e", "default", url=url)
    with workers.worker_in_thread(url, tasks) as held:
        executor.wait_for_workers(1, 60)
        call = invocation.Invocation(
            tasks.Gated("a"), "execute", "atom", 1, {"folder": str(tmp_path)}, flow_uuid="flow"
        )
        executor.submit(call, lambda _, outcome: told.put(outcome.value))
        workers.until(lambda: tasks.runs(tmp_path) == ["execute-a"])
        assert executor._writer.ledger is not None
        assert executor._writer.ledger.reopen(call.ticket.id, 2048) is None
        (tmp_path / "gate-execute").touch()
        workers.until(lambda: held.counts.get("fenced"))
        assert held._proxy.flush(60) and executor._proxy.flush(10)
        executor.disown()
        executor.stop()
    assert told.empty()


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
