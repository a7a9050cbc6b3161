"""Worker processes that die or stop while an engine runs, over a folder as broker."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support import engine_threads, sample_tasks, workers
from tests.support import fragile_tasks as tasks
from tests.support.reading import read_flow
from wbengine import engines, states, task
from wbengine import exceptions as exc
from wbengine._calls import invocation
from wbengine.engines.worker_based import executor as executors
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import backends
from wbengine.views import watcher

#: Seconds of silence after which a worker is lost: three heartbeats.
EXPIRY = 2.0


@contextlib.contextmanager
def fleet(folder: Path, count: int, *more: str) -> Iterator[list[workers.WorkerProcess]]:
    arguments = ["--url", url(folder), "--topic", "t", "--threads", "1", *more]
    arguments += ["--tasks", "tests.support.fragile_tasks", "--tasks", "tests.support.sample_tasks"]
    with workers.workers(folder, *arguments, count=count) as started:
        yield started


def url(folder: Path) -> str:
    return f"filesystem://{folder / 'broker'}"


def load(flow: Any, folder: Path, **options: Any) -> Any:
    # The start of workers has no time limit.
    options = {"worker_expiry": EXPIRY, "transition_timeout": 300, **options}
    return engines.load(
        flow,
        store={"folder": str(folder), "numbers": [7]},
        engine="worker-based",
        url=url(folder),
        **options,
    )


def test_idempotent_task_is_resent_when_its_worker_is_lost(tmp_path: Path) -> None:
    with fleet(tmp_path, 2):
        engine = load(linear_flow.Flow("f").add(tasks.Mortal("m", provides="m")), tmp_path)
        engine.run()
    assert tasks.runs(tmp_path) == ["execute-m"] * 2
    assert engine.storage.fetch("m") == 0


def test_non_idempotent_task_fails_when_its_worker_is_lost(tmp_path: Path) -> None:
    with fleet(tmp_path, 1):
        engine = load(linear_flow.Flow("f").add(tasks.Once("o")), tmp_path)
        with pytest.raises(exc.WorkerLost):
            engine.run()
    assert tasks.runs(tmp_path) == ["execute-o"]


@pytest.mark.parametrize(
    ("kind", "is_cancelled"),
    [
        ("task", False),
        ("step", True),
        ("map", True),
        pytest.param("map", False, marks=pytest.mark.slow),
        pytest.param("task", True, marks=pytest.mark.slow),
        pytest.param("step", False, marks=pytest.mark.slow),
    ],
)
def test_resent_request_of_suspended_flow_keeps_its_id(
    tmp_path: Path, kind: str, is_cancelled: bool
) -> None:
    """Its first copy may have taken effect, so it runs under the same id, or is reverted."""
    flow: Any = tasks.keyed
    if kind != "step":
        atom = tasks.Keyed("k")
        many = task.Map(atom, over="numbers", item="number")
        flow = linear_flow.Flow("f").add(many if kind == "map" else atom)
    with backends.backend("memory://") as backend:
        engine = load(flow, tmp_path, backend=backend)

        def record() -> Any:
            return list(engine.storage.flow_detail)[-1]

        def is_resent() -> bool:
            return states.RESENT in [each.event for each in record().incidents]

        with fleet(tmp_path, 1), engine_threads.Running(engine) as run:
            workers.until(is_resent)
            engine.suspend()
            assert run.end() == states.SUSPENDED
        assert record().state == states.RUNNING
        with fleet(tmp_path, 1):
            if is_cancelled:
                engine.notifier.register(states.RUNNING, lambda *_, **__: engine.cancel())
                with pytest.raises(exc.Cancelled):
                    engine.run()
                assert tasks.runs(tmp_path)[2:] == ["revert"]
            else:
                engine.run()
                first, _, second, _ = tasks.runs(tmp_path)
                assert first == second


@pytest.mark.parametrize("mapped", [False, True])
def test_worker_loss_and_resend_are_recorded_and_notified(tmp_path: Path, mapped: bool) -> None:
    """Both records contain the names of the workers, and listeners receive them."""
    mortal = tasks.Mortal("m")
    flow = linear_flow.Flow("f")
    flow.add(task.Map(mortal, over="numbers", item="number") if mapped else mortal)
    backend = backends.fetch({"connection": f"sqlite:///{tmp_path}/store.db"})
    heard: list[tuple[str, Any, Any]] = []
    threads: set[threading.Thread] = set()
    stored: list[str] = []
    with fleet(tmp_path, 2) as started, contextlib.closing(backend):
        with contextlib.closing(backend.get_connection()) as connection:
            connection.upgrade()
        engine = load(flow, tmp_path, backend=backend)

        def hear(event: str, details: dict[str, Any]) -> None:
            heard.append((event, details["lost_worker"], details["item"]))
            threads.add(threading.current_thread())
            detail = read_flow(backend, engine.storage.flow_uuid)
            kept = [each.state for each in watcher.events_of(detail) if each.kind == "incident"]
            stored.append(kept[len(heard) - 1])

        for event in states.INCIDENTS:
            engine.atom_notifier.register(event, hear)
        engine.run()
        (dead,) = [each for each in started if each.process.poll() is not None]
        detail = read_flow(backend, engine.storage.flow_uuid)
    lost, resent = [event for event in watcher.events_of(detail) if event.kind == "incident"]
    assert (lost.state, resent.state) == ("WORKER_LOST", "RESENT")
    assert str(dead.process.pid) in lost.worker and lost.worker == resent.lost_worker
    assert resent.worker is not None and resent.worker != lost.worker
    assert lost.item == resent.item == (0 if mapped else None)
    assert heard == [("WORKER_LOST", None, lost.item), ("RESENT", lost.worker, lost.item)]
    assert stored == ["WORKER_LOST", "RESENT"]  # the record precedes the notification
    assert threads == {threading.current_thread()}


def test_slow_listener_of_worker_loss_does_not_delay_recovery(tmp_path: Path) -> None:
    """The listener runs in the engine's thread while another worker runs the task."""
    ran = threading.Event()
    with fleet(tmp_path, 2):
        engine = load(linear_flow.Flow("f").add(tasks.Mortal("m")), tmp_path)

        def wait(event: str, details: dict[str, Any]) -> None:
            with contextlib.suppress(AssertionError):
                workers.until(lambda: len(tasks.runs(tmp_path)) == 2)
                ran.set()

        engine.atom_notifier.register(states.WORKER_LOST, wait)
        engine.run()
    assert ran.is_set()


def test_task_that_kills_workers_fails_after_max_resends(tmp_path: Path) -> None:
    with fleet(tmp_path, 2):
        engine = load(linear_flow.Flow("f").add(tasks.Killer("k")), tmp_path, max_resends=1)
        with pytest.raises(exc.WorkerLost, match="2 workers were lost with this task"):
            engine.run()
    assert len(set(tasks.runs(tmp_path))) == len(tasks.runs(tmp_path)) == 2


def test_idempotent_revert_is_resent_when_its_worker_dies(tmp_path: Path) -> None:
    flow = linear_flow.Flow("f").add(tasks.Undone("u"), sample_tasks.Fail(name="bad"))
    with fleet(tmp_path, 2):
        engine = load(flow, tmp_path)
        with pytest.raises(exc.WrappedFailure) as caught:
            engine.run()
    assert caught.value.check(ValueError) and not caught.value.check(exc.WorkerLost)
    assert tasks.runs(tmp_path) == ["execute", "revert", "revert"]
    assert engine.storage.get_flow_state() == "REVERTED"


def test_lost_worker_in_non_idempotent_revert_leaves_flow_in_failure(tmp_path: Path) -> None:
    """The effect of the revert is unknown, so the flow is not REVERTED."""
    undone = tasks.Undone("u")
    undone.idempotent = False
    flow = linear_flow.Flow("f").add(undone, sample_tasks.Fail(name="bad"))
    with fleet(tmp_path, 2):
        engine = load(flow, tmp_path)
        with pytest.raises(exc.WorkerLost, match=r"task 'u' \(revert\)"):
            engine.run()
    assert tasks.runs(tmp_path) == ["execute", "revert"]
    assert engine.storage.get_flow_state() == "FAILURE"


def test_late_reply_of_stopped_worker_is_ignored(tmp_path: Path) -> None:
    """Another worker runs the request of a worker that is stopped for a longer time."""
    with fleet(tmp_path, 2) as started:
        executor = executors.WorkerTaskExecutor("e", "default", url=url(tmp_path), worker_expiry=2)
        executor.wait_for_workers(2, 60)
        flow = linear_flow.Flow("f").add(tasks.Sleeper("s", provides="who"))
        engine = load(flow, tmp_path, executor=executor)
        engine.run()
        assert engine.storage.fetch("who") == "second"
        first = int(tasks.runs(tmp_path)[0].partition("-")[2])
        os.kill(first, signal.SIGCONT)
        (stopped,) = [each for each in started if each.process.pid == first]
        workers.until(lambda: "withdrew request" in stopped.text or executor.ignored)
        executor.stop()
        assert engine.storage.fetch("who") == "second"
        assert len(tasks.runs(tmp_path)) == 2


def test_stalled_engine_does_not_treat_workers_as_lost(tmp_path: Path) -> None:
    """After the blocked loop the last heartbeat can be older than `worker_expiry`."""
    with workers.worker_in_thread(url(tmp_path), sample_tasks, threads_count=2):
        executor = executors.WorkerTaskExecutor("e", "default", url=url(tmp_path), worker_expiry=4)
        executor.wait_for_workers(1, 60)
        lost: list[Any] = []
        tell = executor._events.on_workers
        executor.finder._on_change = lambda gained, gone: (lost.extend(gone), tell(gained, gone))
        executor._proxy.consumer.call_soon(lambda: time.sleep(3.5))
        ended = threading.Event()
        call = invocation.Invocation(sample_tasks.Nothing(name="n"), "execute", "atom", 1)
        executor.submit(call, lambda _, outcome: ended.set())
        assert ended.wait(60)
        assert not lost
        executor.stop()


@pytest.mark.slow
def test_hundred_engines_share_one_executor() -> None:
    """Each engine gets its own results. A failed engine does not affect the others."""
    place = "memory://hundred"
    executor = executors.WorkerTaskExecutor("shared", "default", url=place)
    failed: list[int] = []

    def run(number: int) -> None:
        flow = unordered_flow.Flow(f"f{number}")
        flow.add(*(sample_tasks.Echo(name=f"e{n}", provides=f"v{n}") for n in range(5)))
        if number % 10 == 3:
            flow.add(sample_tasks.Fail(name="bad"))
        engine = engines.load(
            flow, store={"value": number}, engine="worker-based", url=place, executor=executor
        )
        try:
            engine.run()
        except exc.WrappedFailure:
            failed.append(number)
        else:
            assert {engine.storage.fetch(f"v{n}") for n in range(5)} == {number}

    with workers.worker_in_thread(place, sample_tasks, threads_count=4):
        threads = [threading.Thread(target=run, args=(number,)) for number in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert sorted(failed) == list(range(3, 100, 10))
    assert len(executor._tracker.requests) == 0
    # The executor stops when its last engine has ended.
    assert executor._thread is None and executor._users == 0


def test_failed_drop_of_ledger_row_is_retried() -> None:
    place = "memory://undropped"
    executor = executors.WorkerTaskExecutor("e", "default", url=place, worker_expiry=2)
    with workers.worker_in_thread(place, sample_tasks):
        executor.wait_for_workers(1, 60)
        ledger = executor._writer.ledger
        assert ledger is not None
        drop, away = ledger.drop_many, True

        def refuse(request_ids: Sequence[str]) -> None:
            if away:
                raise exc.LedgerFailure("it is away")
            drop(request_ids)

        def refuse_one(request_id: str) -> None:
            refuse((request_id,))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ledger, "drop_many", refuse)
            patch.setattr(ledger, "drop", refuse_one)
            flow = linear_flow.Flow("f").add(sample_tasks.Nothing(name="n"))
            engines.load(flow, engine="worker-based", executor=executor).run()
            workers.until(lambda: executor._writer._failed_drops)
            assert len(ledger.ids()) == len(executor._writer._failed_drops) == 1
            away = False
            workers.until(lambda: not ledger.ids())
        executor.stop()


def test_request_is_requeued_when_its_claim_fails(rowless_url: str) -> None:
    """The worker requeues the request, so no timeout is needed."""
    place, url = "memory://unclaimed", rowless_url
    with (
        workers.worker_in_thread(url, sample_tasks, ledger=place) as made,
        pytest.MonkeyPatch.context() as patch,
    ):
        ledger = made._runner.ledger
        assert ledger is not None
        claim, tries = ledger.claim, 0

        def refuse(*which: Any) -> Any:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise exc.LedgerFailure("it is away")
            if tries == 2:
                raise RuntimeError("it is broken")
            return claim(*which)

        patch.setattr(ledger, "claim", refuse)
        flow = linear_flow.Flow("f").add(sample_tasks.Nothing(name="n"))
        engines.load(flow, engine="worker-based", url=url, ledger=place).run()
        assert tries == 3
        assert made.counts == {"returned": 2, "SUCCESS": 1}
        assert not made._proxy.dispatcher.refused
