"""Flows that are resumed after their engine was killed while workers ran its tasks.

Tests that take long or resemble others are `slow` (tools/crash kills at every point).
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.seams import ledgers, transports
from tests.support import python, workers
from tests.support import resuming_tasks as tasks
from tests.support.engine_threads import running
from wbengine import engines, states
from wbengine import exceptions as exc
from wbengine._calls import invocation
from wbengine.engines.worker_based import _resume
from wbengine.engines.worker_based import executor as executors
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._connections import outgoing
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.persistence import models


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Folder of the broker and the store. After the test it must contain no queue of an engine."""
    yield tmp_path
    broker = tmp_path / "broker"
    seen = transports.Folder(broker)
    assert not seen.left() and not ledgers.rows(broker)
    assert all(name.startswith("t.") for name in seen.queues), seen.queues


def worker(folder: Path, slots: int = 4, **options: Any) -> Any:
    url = f"filesystem://{folder / 'broker'}"
    return workers.worker_in_thread(url, tasks, threads_count=slots, **options)


@contextlib.contextmanager
def engine_process(
    flow: str, folder: Path, *options: str, point: str = "", hit: int = 1
) -> Iterator[Any]:
    """Run an engine in a process, and kill it at the end unless it killed itself."""
    command = [
        "-m",
        "tests.support.resuming_tasks",
        flow,
        str(folder),
        point,
        str(hit),
    ]
    process = python.start([*command, *options], cwd=workers.REPOSITORY)
    try:
        yield process
    finally:
        process.kill()
        assert process.wait() == -signal.SIGKILL


def kill_when(flow: str, folder: Path, until: Any, *options: str) -> None:
    with engine_process(flow, folder, *options):
        workers.until(until)


def kill_at(flow: str, folder: Path, point: str, hit: int = 1, *options: str) -> None:
    with engine_process(flow, folder, *options, point=point, hit=hit) as process:
        process.wait(60)


def open_gate(folder: Path, action: str = "execute") -> None:
    (folder / f"gate-{action}").touch()


def was_queried(held: Any) -> bool:
    return any(
        job.inquiry_number > 1 or job.seq > 1 for job in held._server._job_table.jobs.values()
    )


def done_rows(folder: Path) -> int:
    return len(ledgers.rows(folder / "broker", "done"))


@pytest.mark.slow
def test_resumed_flow_uses_results_that_arrived_without_engine(folder: Path) -> None:
    with worker(folder):
        kill_when("gated", folder, lambda: tasks.runs(folder) == ["execute-a"])
        open_gate(folder)
        workers.until(lambda: done_rows(folder) == 1)
        again = tasks.engine_of("gated", folder)
        again.run()
        assert again.storage.fetch("gated") == "done-a"
        assert tasks.runs(folder) == ["execute-a", "execute-b"]
        assert again.storage.record("a").attempt == 1


def test_resumed_flow_waits_for_tasks_that_still_run(folder: Path) -> None:
    with worker(folder) as held:
        kill_when("gated", folder, lambda: tasks.runs(folder) == ["execute-a"])
        again = tasks.engine_of("gated", folder)
        with running(again):
            workers.until(lambda: was_queried(held))
            open_gate(folder)
        assert tasks.runs(folder) == ["execute-a", "execute-b"]
        assert again.storage.get_flow_state() == states.SUCCESS
        assert held.counts["SUCCESS"] == 2


@pytest.mark.parametrize(
    ("point", "hit"),
    [
        ("executor.before-drop", 1),
        pytest.param("executor.before-open", 1, marks=pytest.mark.slow),
        pytest.param("executor.after-open", 1, marks=pytest.mark.slow),
        pytest.param("sender.before-publish", 1, marks=pytest.mark.slow),
        pytest.param("executor.after-drop", 1, marks=pytest.mark.slow),
        pytest.param("proxy.before-ack", 1, marks=pytest.mark.slow),
    ],
)
def test_engine_killed_at_any_point_runs_each_task_once(folder: Path, point: str, hit: int) -> None:
    with worker(folder):
        kill_at("wide", folder, point, hit)
        again = tasks.engine_of("wide", folder)
        again.run()
        assert sorted(tasks.runs(folder)) == [f"execute-p{n}" for n in range(6)]
        assert {again.storage.record(f"p{n}").attempt for n in range(6)} == {1}


STEPS = sorted([*(f"execute-{n}" for n in range(4)), *(f"item-{n}" for n in range(6))])


def test_resumed_workflow_waits_for_steps_that_still_run(folder: Path) -> None:
    """Two steps of a map are saved, and four run."""
    with worker(folder) as held:
        kill_when("stepping", folder, lambda: len(tasks.runs(folder)) == 9)
        again = tasks.engine_of("stepping", folder)
        with running(again):
            workers.until(lambda: was_queried(held))
            open_gate(folder)
        assert sorted(tasks.runs(folder)) == STEPS
        assert again.storage.fetch("result") == [*range(0, 60, 10), 4]
        assert held.counts["SUCCESS"] == 10


@pytest.mark.parametrize(
    ("point", "hit"),
    [
        ("executor.before-open", 5),
        ("proxy.before-ack", 1),
        pytest.param("executor.before-open", 2, marks=pytest.mark.slow),
        pytest.param("executor.after-open", 4, marks=pytest.mark.slow),
        pytest.param("sender.before-publish", 4, marks=pytest.mark.slow),
        pytest.param("executor.before-drop", 1, marks=pytest.mark.slow),
        pytest.param("executor.after-drop", 1, marks=pytest.mark.slow),
        pytest.param("storage.before-save", 3, marks=pytest.mark.slow),
        pytest.param("storage.before-save", 6, marks=pytest.mark.slow),
    ],
)
def test_resumed_workflow_runs_each_step_once(folder: Path, point: str, hit: int) -> None:
    with worker(folder):
        kill_at("stepping", folder, point, hit)
        open_gate(folder)
        again = tasks.engine_of("stepping", folder)
        again.run()
        assert sorted(tasks.runs(folder)) == STEPS
        assert again.storage.fetch("result") == [*range(0, 60, 10), 4]


BACK = [*(f"execute-{n}" for n in range(4)), *(f"revert-{n}" for n in (3, 2, 1, 0))]


@pytest.mark.parametrize(
    ("point", "hit"),
    [
        ("storage.before-save", 8),
        ("executor.before-drop", 1),  # while a reversion waits at its gate
        pytest.param("storage.before-save", 6, marks=pytest.mark.slow),
        pytest.param("storage.before-save", 7, marks=pytest.mark.slow),
        pytest.param("executor.before-open", 6, marks=pytest.mark.slow),
        pytest.param("executor.before-open", 7, marks=pytest.mark.slow),
        pytest.param("executor.after-open", 7, marks=pytest.mark.slow),
        pytest.param("executor.after-drop", 1, marks=pytest.mark.slow),
    ],
)
def test_resumed_workflow_reverts_each_step_once(folder: Path, point: str, hit: int) -> None:
    with worker(folder):
        kill_at("stepping_back", folder, point, hit)
        open_gate(folder, "revert")
        again = tasks.engine_of("stepping_back", folder)
        with pytest.raises(RuntimeError, match="no"):
            again.run()
        assert tasks.runs(folder) == BACK
        assert again.storage.get_flow_state() == states.REVERTED


RETRIES = [*("execute-fail", "revert-fail") * 2, "execute-fail", "execute-0"]


@pytest.mark.parametrize(
    ("point", "hit"),
    [
        ("executor.before-open", 2),
        pytest.param("storage.before-save", 2, marks=pytest.mark.slow),
        pytest.param("storage.before-save", 3, marks=pytest.mark.slow),
        pytest.param("storage.before-save", 4, marks=pytest.mark.slow),
        pytest.param("storage.before-save", 5, marks=pytest.mark.slow),
        pytest.param("storage.before-save", 6, marks=pytest.mark.slow),
        pytest.param("executor.before-open", 3, marks=pytest.mark.slow),
        pytest.param("executor.after-open", 5, marks=pytest.mark.slow),
        pytest.param("engine.after-retire", 1, marks=pytest.mark.slow),
        pytest.param("engine.after-retire", 5, marks=pytest.mark.slow),
    ],
)
def test_resumed_workflow_repeats_no_retry_of_a_step(folder: Path, point: str, hit: int) -> None:
    with worker(folder):
        kill_at("retrying", folder, point, hit)
        again = tasks.engine_of("retrying", folder)
        again.run()
        assert tasks.runs(folder) == RETRIES
        assert again.storage.fetch("result") == 1


@pytest.mark.slow
def test_shared_executor_resumes_flow_and_keeps_its_name(folder: Path) -> None:
    shared = executors.WorkerTaskExecutor(
        "shared", "default", url=f"filesystem://{folder / 'broker'}"
    )
    with worker(folder) as held:
        kill_when("gated", folder, lambda: tasks.runs(folder) == ["execute-a"])
        again = tasks.engine_of("gated", folder, executor=shared)
        with running(again):
            workers.until(lambda: was_queried(held))
            open_gate(folder)
        shared.stop()
        assert tasks.runs(folder) == ["execute-a", "execute-b"]
        assert shared.uuid == "shared"


@pytest.mark.slow
def test_resumed_flow_waits_for_running_reversion(folder: Path) -> None:
    with worker(folder) as held:
        open_gate(folder)
        kill_when("reverting", folder, lambda: tasks.runs(folder)[1:] == ["revert-a"])
        again = tasks.engine_of("reverting", folder)
        with pytest.raises(RuntimeError), running(again):
            workers.until(lambda: was_queried(held))
            open_gate(folder, "revert")
        assert tasks.runs(folder) == ["execute-a", "revert-a"]
        assert again.storage.get_revert_result("a") == "undone-done-a"


def test_resumed_map_runs_each_item_once(folder: Path) -> None:
    """Two items are saved, two run, and two were never started."""
    with worker(folder) as held:
        kill_when("mapping", folder, lambda: len(tasks.runs(folder)) == 6)
        again = tasks.engine_of("mapping", folder)
        with running(again):
            workers.until(lambda: was_queried(held))
            open_gate(folder)
        assert sorted(tasks.runs(folder)) == [f"item-{n}" for n in range(6)]
        assert again.storage.fetch("m") == [n * 10 for n in range(6)]
        assert again.storage.record("m").items.resumed == 0


def test_resumed_map_reverts_items_that_ran_when_another_failed(folder: Path) -> None:
    """The failure was saved, and the engine died before they finished."""
    with worker(folder, 6) as held:
        kill_at("spoiling", folder, "engine.after-retire")
        again = tasks.engine_of("spoiling", folder)
        with pytest.raises(RuntimeError), running(again):
            workers.until(lambda: was_queried(held))
            open_gate(folder)
    numbers = range(6)
    assert sorted(tasks.runs(folder)) == [f"{w}-{n}" for w in ("item", "undone") for n in numbers]


@pytest.mark.slow
def test_idle_worker_reports_heartbeat_before_it_claims(folder: Path) -> None:
    """Its last heartbeat is old when it receives a request."""
    with worker(folder) as held:
        url, store = f"filesystem://{folder / 'broker'}", {"folder": str(folder)}
        engines.run(tasks.wide(), store=store, engine="worker-based", url=url)
        ledgers.make_heartbeat_older(folder / "broker", held.identity, 3600)
        held._beats.due -= 3600
        (folder / "runs").unlink()
        kill_when("gated", folder, lambda: tasks.runs(folder) == ["execute-a"])
        assert ledgers.silence(folder / "broker", held.identity) < 600
        open_gate(folder)
        tasks.engine_of("gated", folder).run()
        assert tasks.runs(folder) == ["execute-a", "execute-b"]


class BlockingHook(outgoing.DeliveryHooks):
    """Delivery hook that blocks the publisher until it is released."""

    def __init__(self) -> None:
        self.met, self.let = threading.Event(), threading.Event()

    def prepare(self, messages: Sequence[outgoing.OutgoingMessage]) -> None:
        self.met.set()
        self.let.wait(60)
        for message in messages:
            message.withdrawn = True


def test_worker_with_unsent_reply_keeps_reporting_heartbeats(folder: Path) -> None:
    """No task runs on the worker, and it still owns the row."""
    hindrance = BlockingHook()
    with worker(folder) as held, running(tasks.engine_of("gated", folder), hindrance.let):
        workers.until(lambda: tasks.runs(folder) == ["execute-a"])
        hindering = outgoing.OutgoingMessage(env.Envelope(pr.NOTIFY, {}), hindrance)
        held._proxy.send(hindering, defer=True)
        assert hindrance.met.wait(30)
        open_gate(folder)
        workers.until(lambda: not held._server.running)
        assert not done_rows(folder)
        ledgers.make_heartbeat_older(folder / "broker", held.identity, 3600)
        held._beats.due = 0.0
        held._beat(time.monotonic())
        assert ledgers.silence(folder / "broker", held.identity) < 600
    assert tasks.runs(folder) == ["execute-a", "execute-b"]


def orphaned(folder: Path, flow: str) -> Any:
    """Return an engine for a flow whose engine and worker died during a task."""
    arguments = ("--url", f"filesystem://{folder / 'broker'}", "--topic", "t",
                 "--tasks", tasks.__name__)  # fmt: skip
    with workers.workers(folder, *arguments):
        kill_when(flow, folder, lambda: tasks.runs(folder) == ["execute-a"])
    return tasks.engine_of(flow, folder, worker_expiry=5)


@pytest.mark.slow
def test_resumed_flow_fails_task_that_was_lost_with_its_worker(folder: Path) -> None:
    again = orphaned(folder, "gated")
    open_gate(folder, "revert")
    with worker(folder), pytest.raises(exc.WorkerLost):
        again.run()
    # Its effect is uncertain, so the task is reverted.
    assert tasks.runs(folder) == ["execute-a", "revert-a"]


@pytest.mark.slow
def test_resumed_flow_runs_lost_idempotent_task_again(folder: Path) -> None:
    again = orphaned(folder, "repeatable")
    with worker(folder):
        open_gate(folder)
        again.run()
    assert tasks.runs(folder) == ["execute-a", "execute-a", "execute-b"]
    assert again.storage.record("a").attempt == 1


@pytest.mark.slow
def test_resumed_flow_without_ledger_queries_workers(folder: Path) -> None:
    with worker(folder, ledger="none") as held:
        kill_when("gated", folder, lambda: tasks.runs(folder) == ["execute-a"], "ledger=none")
        again = tasks.engine_of("gated", folder, ledger="none")
        with running(again):
            workers.until(lambda: was_queried(held))
            open_gate(folder)
        assert tasks.runs(folder) == ["execute-a", "execute-b"]


def test_resumed_flow_without_ledger_uses_result_kept_by_worker(folder: Path) -> None:
    with worker(folder, ledger="none") as held:
        kill_when("gated", folder, lambda: tasks.runs(folder) == ["execute-a"], "ledger=none")
        open_gate(folder)
        workers.until(lambda: held.counts.get("SUCCESS") == 1)
        tasks.engine_of("gated", folder, ledger="none").run()
        assert tasks.runs(folder) == ["execute-a", "execute-b"]


@pytest.mark.slow
def test_resumed_flow_without_ledger_fails_unknown_request_as_lost(folder: Path) -> None:
    """It was never published, but that is unknown without a ledger."""
    open_gate(folder, "revert")
    with worker(folder, ledger="none"), pytest.raises(exc.WorkerLost):
        kill_at("gated", folder, "engine.before-submit", 1, "ledger=none")
        tasks.engine_of("gated", folder, ledger="none", transition_timeout=1).run()


@pytest.mark.parametrize("level", [pytest.param("batch", marks=pytest.mark.slow), "end"])
def test_resumed_flow_finds_requests_that_store_does_not_contain(folder: Path, level: str) -> None:
    """A request that was published but not saved is found when it is published again."""
    with worker(folder) as held:
        option = f"durability={level}"
        kill_when("gated", folder, lambda: tasks.runs(folder) == ["execute-a"], option)
        again = tasks.engine_of("gated", folder, durability=level)
        with running(again):
            workers.until(lambda: was_queried(held))
            open_gate(folder)
        assert tasks.runs(folder) == ["execute-a", "execute-b"]


@pytest.mark.parametrize("level", ["batch", "end"])
def test_resumed_workflow_finds_steps_that_store_does_not_contain(folder: Path, level: str) -> None:
    """Without their records, the steps have the same requests as before."""
    with worker(folder):
        kill_at("stepping", folder, "executor.after-open", 5, f"durability={level}")
        open_gate(folder)
        again = tasks.engine_of("stepping", folder, durability=level)
        again.run()
        assert sorted(tasks.runs(folder)) == STEPS
        assert again.storage.fetch("result") == [*range(0, 60, 10), 4]


def test_frozen_engine_that_lost_its_flow_changes_nothing(folder: Path) -> None:
    """The engine stays frozen until another one owns the flow."""
    with worker(folder) as held:
        with engine_process("gated", folder, "lease=0.5") as process:
            workers.until(lambda: tasks.runs(folder) == ["execute-a"])
            process.send_signal(signal.SIGSTOP)
            again = tasks.engine_of("gated", folder, on_busy="wait")
            with running(again):
                workers.until(lambda: was_queried(held))
                process.send_signal(signal.SIGCONT)
                assert process.wait(60) == 1  # LeaseLost
                process.wait = lambda *_: -signal.SIGKILL
                open_gate(folder)
        assert tasks.runs(folder) == ["execute-a", "execute-b"]
        assert again.storage.get_flow_state() == states.SUCCESS


def submitted(executor: Any, atom: Any, heard: list[Any], **arguments: Any) -> Any:
    call = invocation.Invocation(atom, "execute", "atom", 1, arguments, flow_uuid="flow")
    executor.submit(call, lambda _, outcome: heard.append(outcome))
    return call


def raise_lease_lost() -> None:
    raise exc.LeaseLost("it is somebody else's now")


def test_request_of_flow_with_lost_lease_is_not_published(tmp_path: Path) -> None:
    """This includes requests that already wait to be published."""
    heard: list[Any] = []
    url = "memory://lost-flow"
    executor = executors.WorkerTaskExecutor("e", "default", url=url)
    with workers.worker_in_thread(url, tasks) as held:
        executor.guard("flow", raise_lease_lost)
        assert executor.wait_for_workers(1, 30) == 0
        call = submitted(executor, tasks.Plain("p"), heard, folder=str(tmp_path))
        assert executor._proxy.flush(30)
        assert executor._writer.ledger is not None and not executor._writer.ledger.ids()
        assert executor.withdraw() == [call]
        executor.stop()
        assert not held.counts and not heard


def test_revoked_request_is_not_run(tmp_path: Path) -> None:
    """Its message is published, but a worker that receives it finds no row."""
    heard: list[Any] = []
    url = "memory://taken-back"
    executor = executors.WorkerTaskExecutor("e", "default", url=url)
    with workers.worker_in_thread(url, tasks, threads_count=1) as held:
        assert executor.wait_for_workers(1, 30) == 0
        first = submitted(executor, tasks.Gated("a"), heard, folder=str(tmp_path))
        workers.until(lambda: tasks.runs(tmp_path) == ["execute-a"])
        second = invocation.Invocation(tasks.Plain("b"), "execute", "b", 1)
        executor.submit(second, lambda _, outcome: heard.append(outcome))
        assert executor._proxy.flush(30)
        assert executor.withdraw() == [second]
        open_gate(tmp_path)
        workers.until(lambda: held.counts.get("MISSING"))
        workers.until(lambda: heard)
        executor.retire([first])
        executor.stop()
    assert tasks.runs(tmp_path) == ["execute-a"]


def test_disowned_request_keeps_its_row_and_reports_no_result(tmp_path: Path) -> None:
    heard: list[Any] = []
    url = "memory://disowned"
    executor = executors.WorkerTaskExecutor("e", "default", url=url)
    with workers.worker_in_thread(url, tasks) as held:
        assert executor.wait_for_workers(1, 30) == 0
        call = submitted(executor, tasks.Gated("a"), heard, folder=str(tmp_path))
        workers.until(lambda: tasks.runs(tmp_path) == ["execute-a"])
        ledger = executor._writer.ledger
        assert ledger is not None
        (row,) = ledger.ids()
        executor.disown()
        executor.retire([call])
        executor.stop()
        open_gate(tmp_path)
        workers.until(lambda: held.counts.get("SUCCESS") == 1)
        assert ledger.ids() == {row} and not heard


def test_executor_takes_over_name_only_if_its_queue_survives() -> None:
    made = executors.WorkerTaskExecutor("second", "default", url="amqp://localhost")
    assert made.take_name("first")
    assert (made.uuid, made.finder.uuid, made._proxy._topic) == ("first",) * 3
    assert (made._tracker.reply_to, made._tracker._inherits) == ("first", True)
    near = executors.WorkerTaskExecutor("second", "default", url="memory://names")
    assert not near.take_name("first") and near.uuid == "second"


def test_flow_records_ledger_of_its_run(tmp_path: Path) -> None:
    """Each ledger is recorded as long as it may contain rows of the flow."""
    url = "memory://remembers"
    store = {"folder": str(tmp_path)}
    with workers.worker_in_thread(url, tasks):
        engine = engines.load(tasks.wide(), store=store, engine="worker-based", url=url)
        engine.run()
        noted = engine.storage.flow_meta[_resume.KEY]
        ((digest, place),) = noted["ledgers"].items()
        assert place == f"the ledger of the broker {url}"
        assert noted["executor"] is None and digest.startswith("memory-")
        engine.storage.flow_meta[_resume.KEY] = {**noted, "ledgers": {"another": "the ledger x"}}
        engine.reset()
        engine.run()
        assert engine.storage.flow_meta[_resume.KEY]["ledgers"] == {digest: place}


@pytest.mark.parametrize(
    ("options", "broker"),
    [
        ({"url": "amqp://me:s3cret@h//"}, "amqp://me:**@h//"),
        ({"url": "memory://near"}, None),
        ({"transport": "pyamqp"}, None),
        ({"transport": "kombu.transport.filesystem:Transport"}, None),
    ],
    ids=["url", "in-process", "alias", "class"],
)
def test_executor_names_broker_only_by_url(options: dict[str, Any], broker: str | None) -> None:
    """Other processes reach the broker by this URL."""
    assert executors.WorkerTaskExecutor("e", "default", **options).broker == broker


def test_ended_requests_exclude_latest_attempt_in_progress() -> None:
    """Finished items of a Map have ended too."""
    flow = models.FlowDetail("f")
    record = models.TaskDetail("a", "atom")
    flow.add(record)
    record.attempt, record.state = 2, states.RUNNING
    assert list(_resume.ended(flow)) == [
        invocation.request_id("atom", action, 1) for action in ("execute", "revert")
    ]
    record.state = states.SUCCESS
    assert len(list(_resume.ended(flow))) == 4
    record.attempt, record.state = 1, states.RUNNING
    record.items = models.Items(1, ["x", "y"])
    record.items[1].put(states.SUCCESS, 1)
    assert invocation.request_id("atom", "execute", 1, 1) in set(_resume.ended(flow))
    assert invocation.request_id("atom", "execute", 1, 0) not in set(_resume.ended(flow))
    record.state = states.PENDING  # a suspended Map keeps its attempt
    assert invocation.request_id("atom", "execute", 1, 1) in set(_resume.ended(flow))
    assert invocation.request_id("atom", "execute", 1, 0) not in set(_resume.ended(flow))
