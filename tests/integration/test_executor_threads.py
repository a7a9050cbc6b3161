"""Interleavings of the threads of one executor."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support import resuming_tasks as tasks
from tests.support import workers
from wbengine import exceptions as exc
from wbengine._calls import invocation
from wbengine._concurrency import crash_points
from wbengine.engines.worker_based import executor as executors
from wbengine.engines.worker_based import types
from wbengine.engines.worker_based._requests import effects as fx


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    yield
    crash_points.install(None)


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
def executor(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Executor with a worker that has one slot."""
    url = f"memory://{request.node.name.partition('[')[0][:60]}"
    found = executors.WorkerTaskExecutor("e", "default", url=url)
    with workers.worker_in_thread(url, tasks, threads_count=1):
        found.wait_for_workers(1, 60)
        yield found
        crash_points.install(None)
        found.disown()
        found.stop()


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
    first, call = (
        new_call(tasks.Gated("a"), tmp_path, "a"),
        new_call(tasks.Plain("b"), tmp_path, "b"),
    )
    executor.submit(first, lambda *_: None)
    workers.until(lambda: tasks.runs(tmp_path) == ["execute-a"])
    executor.submit(call, results)
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
    (tmp_path / "gate-execute").touch()


def test_dropped_row_is_not_opened_again_by_a_late_publish(
    executor: Any, results: Results, tmp_path: Path
) -> None:
    """A second copy of a request is being published when the first one completes.

    A copy that still waits in the broker must not get a claim.
    """
    call, ledger = new_call(tasks.Gated("a"), tmp_path), executor._writer.ledger
    executor.submit(call, results)
    workers.until(lambda: tasks.runs(tmp_path) == ["execute-a"])
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
    executor.submit(new_call(tasks.Gated("a"), tmp_path, "a"), results)
    workers.until(lambda: tasks.runs(tmp_path) == ["execute-a"])
    executor.submit(new_call(tasks.Plain("b"), tmp_path, "b"), results)
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
    (tmp_path / "gate-execute").touch()


@pytest.mark.parametrize("how", ["cancel", "withdraw"])
def test_rows_of_flow_with_lost_lease_are_not_revoked(
    executor: Any, results: Results, tmp_path: Path, how: str
) -> None:
    """The next owner of the flow may have read these rows."""
    lost: list[str] = []

    def check() -> None:
        if lost:
            raise exc.LeaseLost("somebody else took it over")

    executor.guard("flow", check)
    executor.submit(new_call(tasks.Gated("a"), tmp_path, "a"), results)
    workers.until(lambda: tasks.runs(tmp_path) == ["execute-a"])
    call, ledger = new_call(tasks.Plain("b"), tmp_path, "b"), executor._writer.ledger
    executor.submit(call, results)
    assert executor._proxy.flush(60)
    lost.append("now")
    request_id = call.ticket.id
    if how == "cancel":
        executor.cancel([call])
    else:
        assert executor.withdraw("flow") == []
    assert ledger.state(request_id).state == "open"
    executor.disown()
    (tmp_path / "gate-execute").touch()


def test_rejected_request_does_not_delay_the_preceding_one(
    executor: Any, results: Results, tmp_path: Path
) -> None:
    call = new_call(tasks.Plain("p"), tmp_path)
    with pytest.raises(exc.Duplicate):
        executor.submit_many((call, new_call(tasks.Plain("p"), tmp_path)), results)
    assert not isinstance(results.get(timeout=60), Exception) and tasks.runs(tmp_path) == [
        "execute-p"
    ]
