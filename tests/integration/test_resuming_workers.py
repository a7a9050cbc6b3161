"""Flows that are resumed after their engine was killed while workers ran its tasks.

Tests that take long or resemble others are `slow` (tools/crash kills at every point).
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from wbengine.engines.worker_based._connections import sender as outgoing
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


def worker(folder: Path, slots: int = 4, url: str = "") -> Any:
    url = url or f"filesystem://{folder / 'broker'}"
    return workers.worker_in_thread(url, tasks, threads_count=slots)


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
    return any(job.ask_number > 1 or job.seq > 1 for job in held._server._job_table.jobs.values())


def done_rows(folder: Path) -> int:
    return len(ledgers.rows(folder / "broker", "done"))


@dataclass(frozen=True)
class Expected:
    """Runs of tasks in all processes together, and the end of the resumed flow."""

    runs: Sequence[str]
    values: Mapping[str, Any] = field(default_factory=dict)
    any_order: bool = False
    state: str = states.SUCCESS


TENS = list(range(0, 60, 10))
ITEMS = [f"item-{n}" for n in range(6)]
UNDONE = [f"undone-{n}" for n in range(6)]
STEPS = [f"execute-{n}" for n in range(4)]
BACK = [f"revert-{n}" for n in (3, 2, 1, 0)]
RETRIES = [*("execute-fail", "revert-fail") * 2, "execute-fail", "execute-0"]
FLOWS = {
    "gated": Expected(["execute-a", "execute-b"], {"gated": "done-a"}),
    "wide": Expected([f"execute-p{n}" for n in range(6)], any_order=True),
    "reverting": Expected(["execute-a", "revert-a"], state=states.REVERTED),
    "mapping": Expected(ITEMS, {"m": TENS}, any_order=True),
    "spoiling": Expected([*ITEMS, *UNDONE], any_order=True, state=states.REVERTED),
    "stepping": Expected([*STEPS, *ITEMS], {"result": [*TENS, 4]}, any_order=True),
    "stepping_back": Expected([*STEPS, *BACK], state=states.REVERTED),
    "retrying": Expected(RETRIES, {"result": 1}),
}

#: Crashes of engines, and options of the dead engine and of the next one. `POINT HIT` is a crash
#: point. After `N runs`, tasks are in progress until the next engine has queried the worker; after
#: `N ended`, they end before it starts. RabbitMQ has no ledger.
CRASHES = """
    gated 1 runs
    gated 1 ended url=rabbitmq
    gated 1 runs durability=end
    wide executor.before-drop 1
    mapping 6 runs
    spoiling engine.after-retire 1 runs
    stepping 9 runs
    stepping executor.before-open 5
    stepping proxy.before-ack 1
    stepping executor.after-open 5 durability=batch
    stepping executor.after-open 5 durability=end
    stepping_back storage.before-save 8
    stepping_back executor.before-drop 1
    retrying executor.before-open 2
"""
SLOW_CRASHES = """
    gated 1 ended
    gated 1 runs url=rabbitmq
    gated 1 runs durability=batch
    reverting 2 runs
    wide executor.before-open 1
    wide executor.after-open 1
    wide sender.before-publish 1
    wide executor.after-drop 1
    wide proxy.before-ack 1
    stepping executor.before-open 2
    stepping executor.after-open 4
    stepping sender.before-publish 4
    stepping executor.before-drop 1
    stepping executor.after-drop 1
    stepping storage.before-save 3
    stepping storage.before-save 6
    stepping_back storage.before-save 6
    stepping_back storage.before-save 7
    stepping_back executor.before-open 6
    stepping_back executor.before-open 7
    stepping_back executor.after-open 7
    stepping_back executor.after-drop 1
    retrying storage.before-save 2
    retrying storage.before-save 3
    retrying storage.before-save 4
    retrying storage.before-save 5
    retrying storage.before-save 6
    retrying executor.before-open 3
    retrying executor.after-open 5
    retrying engine.after-retire 1
    retrying engine.after-retire 5
"""


def crashes() -> Iterator[Any]:
    for text, marks in ((CRASHES, ()), (SLOW_CRASHES, (pytest.mark.slow,))):
        for line in text.strip().splitlines():
            words = line.split()
            yield pytest.param(words, marks=marks, id="-".join(words))


@pytest.mark.parametrize("crash", list(crashes()))
def test_resumed_flow_runs_no_task_twice(
    folder: Path, crash: list[str], request: pytest.FixtureRequest
) -> None:
    flow, *at = [word for word in crash if "=" not in word]
    given: dict[str, Any] = dict(word.split("=") for word in crash if "=" in word)
    if "url" in given:
        given["url"] = str(request.getfixturevalue("rabbitmq_url"))
    options = [f"{name}={value}" for name, value in given.items()]
    expected, gate = FLOWS[flow], "execute"
    if flow in ("reverting", "stepping_back"):
        open_gate(folder)
        gate = "revert"
    with worker(folder, slots=6, url=given.get("url", "")) as held:
        if at[0].isdecimal():
            kill_when(flow, folder, lambda: len(tasks.runs(folder)) == int(at[0]), *options)
        else:
            kill_at(flow, folder, at[0], int(at[1]), *options)
        if at[-1] != "runs":
            open_gate(folder, gate)
        if at[-1] == "ended":
            workers.until(lambda: held.counts.get("SUCCESS") == int(at[0]))
        again = tasks.engine_of(flow, folder, **given)
        fails = expected.state == states.REVERTED
        with pytest.raises(RuntimeError) if fails else contextlib.nullcontext():
            if at[-1] == "runs":
                with running(again):
                    workers.until(lambda: was_queried(held))
                    open_gate(folder, gate)
            else:
                again.run()
    ran = tasks.runs(folder)
    assert (sorted(ran) if expected.any_order else ran) == expected.runs
    assert again.storage.get_flow_state() == expected.state
    assert {name: again.storage.fetch(name) for name in expected.values} == expected.values
    if flow in ("gated", "wide", "mapping"):
        assert max(atom.attempt for atom in again.storage.flow_detail) == 1
        assert not any(atom.items and atom.items.resumed for atom in again.storage.flow_detail)


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
def test_resumed_flow_without_ledger_fails_unknown_request_as_lost(
    folder: Path, rabbitmq_url: str
) -> None:
    """It was never published, but that is unknown without a ledger."""
    open_gate(folder, "revert")
    url = str(rabbitmq_url)
    with worker(folder, url=url), pytest.raises(exc.WorkerLost):
        kill_at("gated", folder, "engine.before-submit", 1, f"url={url}")
        tasks.engine_of("gated", folder, url=url, transition_timeout=1).run()


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
    made.take_name("first")
    assert (made.uuid, made.finder.uuid, made._proxy._topic) == ("first",) * 3
    assert (made._tracker.reply_to, made._tracker._inherits) == ("first", True)
    near = executors.WorkerTaskExecutor("second", "default", url="memory://names")
    near.take_name("first")
    assert near.uuid == "second"


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
