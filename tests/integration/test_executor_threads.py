"""Threads of one executor that come in between each other, at the worst moment."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support import resuming_tasks as tasks
from tests.support import workers
from wbengine import _crash, invocation
from wbengine import exceptions as exc
from wbengine.engines.worker_based import executor as executors
from wbengine.engines.worker_based import types
from wbengine.engines.worker_based.requests import effects as fx


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    yield
    _crash.install(None)


class Ends(queue.SimpleQueue[Any]):
    """Outcomes, as they are told."""

    def __call__(self, call: invocation.Invocation, outcome: invocation.Outcome) -> None:
        self.put(outcome.value)


def meanwhile(do: Callable[[], object], seconds: float | None = None) -> threading.Thread:
    """Something happens on another thread; wait until it did, or that long."""
    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    thread.join(60 if seconds is None else seconds)
    assert seconds is not None or not thread.is_alive()
    return thread


def made(atom: Any, folder: Path, uuid: str = "atom") -> invocation.Invocation:
    return invocation.Invocation(
        atom, "execute", uuid, 1, {"folder": str(folder)}, flow_uuid="flow"
    )


@pytest.fixture
def ends() -> Ends:
    return Ends()


@pytest.fixture
def executor(request: pytest.FixtureRequest) -> Iterator[Any]:
    """With a worker that has one slot; `held` is that worker."""
    url = f"memory://{request.node.name.partition('[')[0][:60]}"
    found = executors.WorkerTaskExecutor("e", "default", url=url)
    with workers.worker_in_thread(url, tasks, threads_count=1):
        found.wait_for_workers(1, 60)
        yield found
        _crash.install(None)
        found.disown()
        found.stop()


def test_row_that_is_made_while_it_is_looked_for_is_no_lost_one(
    executor: Any, ends: Ends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker of the queue is lost while a request is being published."""
    ledger, call = executor._writer.ledger, made(tasks.Plain("p"), tmp_path)
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
        executor._on_workers(set(), [other])

    def publishing(name: str) -> None:
        if name == "executor.before-open":
            executor._proxy.consumer.call_soon(lose_another)
            assert looked.wait(60)

    monkeypatch.setattr(ledger, "states", slowly)
    _crash.install(publishing)
    executor.submit(call, ends)
    workers.until(lambda: tasks.runs(tmp_path) == ["execute-p"])
    started.set()
    assert ends.get(timeout=60) == "done-p"


def test_row_that_was_just_revoked_is_no_lost_one(
    executor: Any, ends: Ends, tmp_path: Path
) -> None:
    """It is looked at before the book knows why it is gone."""
    first, call = made(tasks.Gated("a"), tmp_path, "a"), made(tasks.Plain("b"), tmp_path, "b")
    executor.submit(first, lambda *_: None)
    workers.until(lambda: tasks.runs(tmp_path) == ["execute-a"])
    executor.submit(call, ends)
    assert executor._proxy.flush(60)
    entry, looking = call.ticket, []

    def look(name: str) -> None:
        if name == "executor.after-revoke":
            do = lambda: executor._apply([fx.Inspect(entry)])  # noqa: E731
            looking.append(meanwhile(do, 0.2))

    _crash.install(look)
    executor.cancel([call])
    workers.until(lambda: looking)
    looking[0].join(60)
    outcome = ends.get(timeout=60)
    assert outcome.check(exc.Cancelled), outcome
    (tmp_path / "gate-execute").touch()


def test_row_that_was_dropped_is_not_made_again(executor: Any, ends: Ends, tmp_path: Path) -> None:
    """A second message of a request was on its way to the broker when the first came to its end:
    a third that waits in the broker must not be granted.
    """
    call, ledger = made(tasks.Gated("a"), tmp_path), executor._writer.ledger
    executor.submit(call, ends)
    workers.until(lambda: tasks.runs(tmp_path) == ["execute-a"])
    entry, claims = call.ticket, []
    again = entry.envelope("e", executor._options, ours=True, ledger=ledger.digest)

    def end(name: str) -> None:
        if name == "executor.before-open":
            (tmp_path / "gate-execute").touch()
            assert ends.get(timeout=60) == "done-a"
            meanwhile(lambda: executor.retire([call]))
        elif name == "executor.after-open":
            claims.append(ledger.claim(entry.id, 1, "another"))

    _crash.install(end)
    executor._apply([fx.Dispatch(entry, 1, again)])
    assert executor._proxy.flush(60)
    assert not any(claim.granted for claim in claims)
    if not tmp_path.joinpath("gate-execute").exists():
        end("executor.before-open")
    assert executor._proxy.flush(60)
    workers.until(lambda: ledger.ids() == set())


@pytest.mark.parametrize("how", ["disown", "withdraw"])
def test_lost_lease_or_suspension_ends_waiting_for_tasks(
    executor: Any, ends: Ends, tmp_path: Path, how: str
) -> None:
    """The lease is lost, or the flow suspended, while an engine waits for its tasks."""
    executor.submit(made(tasks.Gated("a"), tmp_path, "a"), ends)
    workers.until(lambda: tasks.runs(tmp_path) == ["execute-a"])
    executor.submit(made(tasks.Plain("b"), tmp_path, "b"), ends)
    assert executor._proxy.flush(60)
    waiting = meanwhile(lambda: executor.finish("flow"), 0.1)
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
def test_rows_of_a_flow_that_is_lost_are_left_alone(
    executor: Any, ends: Ends, tmp_path: Path, how: str
) -> None:
    """Whoever has it by now may have looked at them."""
    lost: list[str] = []

    def check() -> None:
        if lost:
            raise exc.LeaseLost("somebody else took it over")

    executor.guard("flow", check)
    executor.submit(made(tasks.Gated("a"), tmp_path, "a"), ends)
    workers.until(lambda: tasks.runs(tmp_path) == ["execute-a"])
    call, ledger = made(tasks.Plain("b"), tmp_path, "b"), executor._writer.ledger
    executor.submit(call, ends)
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


def test_refused_request_does_not_hold_back_the_one_before(
    executor: Any, ends: Ends, tmp_path: Path
) -> None:
    call = made(tasks.Plain("p"), tmp_path)
    with pytest.raises(exc.Duplicate):
        executor.submit_many((call, made(tasks.Plain("p"), tmp_path)), ends)
    assert not isinstance(ends.get(timeout=60), Exception) and tasks.runs(tmp_path) == ["execute-p"]
