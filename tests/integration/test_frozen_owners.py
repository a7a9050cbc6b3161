"""Owners of a flow that are stopped where it hurts, and go on when somebody else has the flow."""

from __future__ import annotations

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
from tests.support.messages import Message
from wbengine import _crash, engines, invocation, states, task
from wbengine import exceptions as exc
from wbengine.engines.worker_based import executor as executors
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.patterns import linear_flow
from wbengine.persistence.backends import memory
from wbengine.runtime import control


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    yield
    _crash.install(None)


class Guard:
    """What an engine knows of its lease."""

    def __init__(self) -> None:
        self.lost = False

    def check(self) -> None:
        if self.lost:
            raise exc.LeaseLost("somebody else took it over")


def submitted(executor: Any, atom: Any, uuid: str = "atom", **arguments: Any) -> Any:
    call = invocation.Invocation(atom, "execute", uuid, 1, arguments, flow_uuid="flow")
    executor.submit(call, lambda *_: None)
    return call


# -- what it was about to publish ----------------------------------------------------------------


@pytest.mark.parametrize("point", ["executor.before-open", "executor.after-open"])
def test_what_it_was_publishing_is_not_run_again(tmp_path: Path, point: str) -> None:
    """Another engine took the flow over meanwhile, saw to this very attempt, and saved its end."""
    url, guard = f"memory://{point}", Guard()
    executor = executors.WorkerTaskExecutor("e", "default", url=url)

    def freeze(name: str) -> None:
        if name == point:
            guard.lost = True
            ledger = executor._writer.ledger
            assert ledger is not None
            for request_id in ledger.ids():
                ledger.drop(request_id)

    with workers.worker_in_thread(url, tasks) as held:
        executor.guard("flow", guard.check)
        executor.wait_for_workers(1, 60)
        _crash.install(freeze)
        submitted(executor, tasks.Plain("p"), folder=str(tmp_path))
        assert executor._proxy.flush(60)
        executor.disown()
        executor.stop()
    assert guard.lost and not held.counts
    assert tasks.runs(tmp_path) == []


def test_a_row_that_it_makes_late_does_not_keep_the_next_owner_from_running(tmp_path: Path) -> None:
    """The next one has seen that there is none, and is about to make his."""
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
        _crash.install(thaw)
        executor.submit(call, lambda _, outcome: ended.put(outcome.value))
        assert ended.get(timeout=60) == "done-p"
        executor.retire([call])
        executor.stop()
    assert tasks.runs(tmp_path) == ["execute-p"]


def test_it_takes_back_nothing_of_who_came_after_it(tmp_path: Path) -> None:
    """The row that it is about to revoke may be another owner's by now."""
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
        submitted(executor, tasks.Gated("a"), "a", folder=str(tmp_path))
        workers.until(lambda: tasks.runs(tmp_path) == ["execute-a"])
        call = submitted(executor, tasks.Plain("b"), "b", folder=str(tmp_path))
        assert executor._proxy.flush(60)
        _crash.install(freeze)
        assert executor.withdraw() == []
        _crash.install(None)
        assert executor._writer.ledger is not None
        assert executor._writer.ledger.state(call.ticket.id) == ledgers.Row(
            call.ticket.id, 2048, ledgers.ROW_OPEN
        )
        executor.disown()
        (tmp_path / "gate-execute").touch()
        executor.stop()


# -- what it hears -------------------------------------------------------------------------------


def answer(executor: Any, call: invocation.Invocation | None, epoch: int) -> Any:
    """A terminal answer comes, to a request of this engine or to another one."""
    message: Any = Message(pr.RESPONSE)
    request_id = call.ticket.id if call is not None else "of-somebody-else"
    message.properties["correlation_id"] = request_id
    message.delivery_info = {}
    message.headers = {env.WBE_VERSION: env.VERSION, env.WBE_WORKER: "w", env.WBE_EPOCH: epoch}
    executor._on_response({"state": pr.SUCCESS, "data": {"result": 1}}, message)
    assert executor._proxy.flush(60)
    return message


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("how", ["lost", "disowned"])
def test_answers_to_who_has_its_name_now_are_left_to_him(known: bool, how: str) -> None:
    """They come to either of two that read one queue: what is not acknowledged comes again."""
    guard = Guard()
    executor = executors.WorkerTaskExecutor("e", "default", url=f"memory://names-{known}-{how}")
    executor.guard("flow", guard.check, sole=True)
    executor.start()
    call = submitted(executor, tasks.Plain("p"), folder="") if known else None
    assert answer(executor, call, 2048).done == ["ack"]
    if how == "lost":
        guard.lost = True
        assert answer(executor, call, 2048).done == []
    if how == "disowned":
        executor.disown()
        assert answer(executor, None, 2048).done == []
    executor.stop()
    executor.unguard("flow")


def test_who_shares_an_executor_does_not_keep_others_from_hearing() -> None:
    guard = Guard()
    executor = executors.WorkerTaskExecutor("e", "default", url="memory://shared-names")
    executor.guard("flow", guard.check)
    executor.start()
    guard.lost = True
    executor.disown("flow")
    assert answer(executor, None, 1).done == ["ack"]
    executor.stop()


# -- who else wants it to stop -------------------------------------------------------------------


def test_it_can_be_suspended_while_it_finds_out(tmp_path: Path) -> None:
    """One thread takes work back and finds the flow lost, another one takes it back, too."""
    url = "memory://suspended-and-lost"
    executor = executors.WorkerTaskExecutor("e", "default", url=url)
    signal = control.StopSignal(executor, queue.SimpleQueue(), control.InFlight(executor))
    first, armed = threading.Event(), threading.Event()
    suspending = threading.Thread(target=signal.suspend, daemon=True)
    withdrawing = threading.Thread(target=executor.withdraw, daemon=True)

    def suspends() -> bool:
        """Whether the other thread holds the signal, or has held it."""
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
        submitted(executor, tasks.Gated("a"), "a", folder=str(tmp_path))
        workers.until(lambda: tasks.runs(tmp_path) == ["execute-a"])
        submitted(executor, tasks.Gated("b"), "b", folder=str(tmp_path))
        assert executor._proxy.flush(60)
        armed.set()
        withdrawing.start()
        withdrawing.join(60)
        suspending.join(60)
        (tmp_path / "gate-execute").touch()
        assert not withdrawing.is_alive() and not suspending.is_alive()
        executor.stop()


def test_whoever_does_not_wait_for_what_runs_finds_it_again(tmp_path: Path) -> None:
    """Ctrl-C suspends, and waits for the end of what runs; the second Ctrl-C does not wait."""
    main = threading.get_ident()
    engine = tasks.engine_of("gated", tmp_path)
    book = engine.executor._tracker

    def interrupt_twice() -> None:
        workers.until(lambda: tasks.runs(tmp_path) == ["execute-a"])
        signal.pthread_kill(main, signal.SIGINT)
        workers.until(
            lambda: any(isinstance(e.done, executors._Counted) for e in book.unfinished())
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
        workers.until(lambda: any(job.asked > 1 for job in held._server._roll.jobs.values()))
        (tmp_path / "gate-execute").touch()
        running.join(60)
    assert tasks.runs(tmp_path) == ["execute-a", "execute-b"]
    assert again.storage.get_flow_state() == states.SUCCESS
    assert not ledgers.rows(tmp_path / "broker")


def test_what_was_taken_from_a_worker_while_it_ran_is_not_told_by_it(tmp_path: Path) -> None:
    """Nobody is to take it for the result, whoever has the name of the engine by now."""
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


# -- what it was about to write ------------------------------------------------------------------


class Step(task.Task):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.runs = 0

    def execute(self) -> str:
        self.runs += 1
        return self.name


def test_change_of_a_frozen_owner_is_refused_and_the_next_goes_to_the_newest_records() -> None:
    """Another engine took the flow over, and ran it to its end, in the midst of one write."""
    backend, others = memory.MemoryBackend(), list[Any]()
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
                connection.take_lease(uuid, "elsewhere", 0, dead=connection.get_lease(uuid).epoch)
                detail = connection.get_flow_details(uuid)
            flow = linear_flow.Flow("f").add(Step("a"))
            others.append(engines.load(flow, flow_detail=detail, backend=backend))
            others[0].run()

    _crash.install(run_elsewhere)
    with pytest.raises(exc.LeaseLost):
        engine.storage.update_atom_metadata("a", {"lost": 1})
    found = atom()
    assert found.state == states.SUCCESS and "lost" not in found.meta
    engine.storage.update_atom_metadata("a", {"mark": 1})
    found = atom()
    assert found.state == states.SUCCESS and "lost" not in found.meta and found.meta["mark"] == 1
    assert engine.storage.get_atom_state("a") == states.SUCCESS
