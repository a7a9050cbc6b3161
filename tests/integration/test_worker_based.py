"""Worker-based engine with a worker in the same process, over memory and folders."""

from __future__ import annotations

import contextlib
import re
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest

from tests.seams import ledgers
from tests.seams.transports import Folder
from tests.support import sample_tasks as tasks
from tests.support.brokers import broker_url
from tests.support.workers import interrupted, until, worker_in_thread
from wbengine import engines, exceptions, task
from wbengine._calls import invocation
from wbengine.engines.worker_based import executor as executors
from wbengine.engines.worker_based import worker as workers
from wbengine.engines.worker_based._engine_side import tracker_events
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.transports._broker import Broker

#: More tasks than an error message lists.
MANY = (
    tasks.Add, tasks.Double, tasks.Echo, tasks.Progressing, tasks.WriteFile, tasks.Appends,
    tasks.Fail, tasks.Exit, tasks.Socket, tasks.Die,
)  # fmt: skip


@pytest.fixture(params=["memory", "filesystem"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return broker_url(request.param, request, tmp_path)


@contextlib.contextmanager
def worker(url: str, *, offer: Any = (tasks,), **options: Any) -> Iterator[Any]:
    with worker_in_thread(url, *offer, **{"threads_count": 4, **options}) as started:
        yield started


def load(flow: Any, url: str, **options: Any) -> Any:
    store = options.pop("store", None)
    return engines.load(flow, store=store, engine="worker-based", url=url, **options)


def run(flow: Any, url: str, **options: Any) -> Any:
    loaded = load(flow, url, **options)
    loaded.run()
    return loaded


def test_engine_keeps_no_bodies_of_replies(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = []
    handle = tracker_events.TrackerEvents.on_response

    def on_response(self: Any, data: Any, message: Any) -> None:
        assert message.body
        handle(self, data, message)
        answers.append(message)

    monkeypatch.setattr(tracker_events.TrackerEvents, "on_response", on_response)
    with worker(url):
        run(linear_flow.Flow("f").add(tasks.Echo("echo")), url, store={"value": 1})
    assert answers
    assert not any(message.body for message in answers)


class Rest(task.Task):
    def execute(self, seconds: float) -> None:
        time.sleep(seconds)


def test_attempt_and_notification_contain_worker_that_ran_it(url: str) -> None:
    failures: list[Any] = []
    flow = linear_flow.Flow("f").add(tasks.Nothing(name="n"), tasks.Fail(name="bad"))
    with worker(url) as running_worker:
        loaded = load(flow, url, never_resolve=True)
        loaded.atom_notifier.register("FAILURE", lambda _, details: failures.append(details))
        with pytest.raises(exceptions.WrappedFailure):
            loaded.run()
    attempt = loaded.storage.get_attempt("n")
    assert attempt.worker == running_worker.identity
    assert attempt.started <= attempt.ended
    assert [(details["task_name"], details["worker"]) for details in failures] == [
        ("bad", running_worker.identity)
    ]


def test_two_thousand_tasks_run_on_workers(url: str) -> None:
    flow = unordered_flow.Flow("wide")
    flow.add(*(tasks.Nothing(name=f"n{i}") for i in range(2000)))
    with worker(url):
        loaded = run(flow, url)
    assert loaded.storage.get_flow_state() == "SUCCESS"
    assert not loaded.executor.ignored


@pytest.mark.parametrize(
    ("offered", "words"),
    [
        ((), ["no worker is known"]),
        (
            (tasks.Add, tasks.Double),
            [
                "no worker offers tests.support.sample_tasks.Nothing",
                "topics: t",
                "tests.support.sample_tasks.Add, tests.support.sample_tasks.Double$",
            ],
        ),
        (MANY, [r"tests\.support\.sample_tasks\.Progressing and 2 more$"]),
    ],
    ids=["no worker", "two tasks", "many tasks"],
)
def test_task_that_no_worker_offers_fails_and_names_those_offered(
    url: str, offered: tuple[Any, ...], words: list[str]
) -> None:
    with contextlib.ExitStack() as stack:
        loaded = load(linear_flow.Flow("f").add(tasks.Nothing(name="n")), url, transition_timeout=1)
        if offered:
            stack.enter_context(worker(url, offer=offered))
            assert loaded.executor.wait_for_workers(1, timeout=30) == 0
        with pytest.raises(exceptions.RequestTimeout) as caught:
            loaded.run()
    for word in words:
        assert re.search(word, str(caught.value))


def test_request_queued_behind_busy_worker_does_not_time_out(url: str) -> None:
    flow = unordered_flow.Flow("f").add(*(Rest(name=f"n{i}") for i in range(3)))
    with worker(url, offer=(Rest,), threads_count=1):
        loaded = run(flow, url, store={"seconds": 0.8}, transition_timeout=0.3)
    assert loaded.storage.get_flow_state() == "SUCCESS"


def test_task_with_required_constructor_argument_is_rejected_at_load(url: str) -> None:
    with pytest.raises(exceptions.CompilationFailure, match=r"NeedsMore\(name=...\) raises"):
        load(linear_flow.Flow("f").add(tasks.NeedsMore(colour="red")), url)


def test_one_engine_runs_again_after_its_executor_stopped(url: str) -> None:
    with worker(url):
        loaded = load(linear_flow.Flow("f").add(tasks.Nothing()), url)
        for _ in range(3):
            loaded.run()
            loaded.reset()


def test_workers_are_counted_and_topics_are_chosen(url: str) -> None:
    with worker(url, topic="video.hd"), worker(url, topic="video.sd"), worker(url, topic="audio"):
        loaded = load(linear_flow.Flow("f").add(tasks.Nothing()), url, topics=["video.*"])
        assert loaded.executor.wait_for_workers(2, timeout=30) == 0
        assert loaded.executor.finder.topics() == ["video.hd", "video.sd"]
        loaded.run()
        assert loaded.executor.wait_for_workers(9, timeout=0.01) > 0
        loaded.executor.stop()


def test_workers_with_different_tasks_on_one_topic_receive_only_their_own(url: str) -> None:
    flow = unordered_flow.Flow("mixed")
    flow.add(*(tasks.Nothing(name=f"n{i}") for i in range(50)))
    flow.add(*(tasks.Echo(name=f"e{i}", provides=f"echo{i}") for i in range(50)))
    with worker(url, offer=[tasks.Nothing]) as first, worker(url, offer=[tasks.Echo]) as second:
        loaded = run(flow, url, store={"value": 1})
    ran = {loaded.storage.get_attempt(f"n{i}").worker for i in range(50)}
    assert ran == {first.identity}
    ran = {loaded.storage.get_attempt(f"e{i}").worker for i in range(50)}
    assert ran == {second.identity}


@pytest.mark.parametrize("name", ["a/b", "..", ".", "", "nul\0", "x" * 121, "ü"])
@pytest.mark.parametrize("what", ["exchange", "topics"])
def test_invalid_exchange_or_topic_is_rejected(url: str, what: str, name: str) -> None:
    with pytest.raises(ValueError, match=what.rstrip("s")):
        load(linear_flow.Flow("f"), url, **{what: [name] if what == "topics" else name})


def test_unreachable_broker_raises_transport_failure_with_path() -> None:
    loaded = load(linear_flow.Flow("f").add(tasks.Nothing()), "filesystem:///proc/no/where")
    with pytest.raises(exceptions.TransportFailure, match="/proc"):
        loaded.run()


def test_suspended_flow_waits_for_running_tasks_and_is_resumed(url: str, tmp_path: Path) -> None:
    started, release = tmp_path / "started", tmp_path / "release"
    flow = linear_flow.Flow("f").add(tasks.WaitFor(), tasks.Nothing(name="later"))
    with worker(url):
        loaded = load(flow, url, store={"started": str(started), "release": str(release)})
        for state in loaded.run_iter():
            if state == "WAITING":
                until(started.exists)
                loaded.suspend()
                release.touch()
        assert loaded.storage.get_flow_state() == "SUSPENDED"
        assert loaded.storage.get_atom_state("later") == "PENDING"
        loaded.run()
    assert loaded.storage.get_flow_state() == "SUCCESS"


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, LookupError])
def test_interrupted_engine_lets_tasks_on_workers_finish(
    error: type[BaseException], shared: bool, url: str, tmp_path: Path
) -> None:
    """An interruption does not fail running tasks, as on local engines."""
    started, release = tmp_path / "started", tmp_path / "release"
    flow = linear_flow.Flow("f").add(tasks.WaitFor(name="runs"), tasks.Nothing(name="later"))
    given = executors.WorkerTaskExecutor("shared", "default", url=url) if shared else None
    with worker(url):
        store = {"started": str(started), "release": str(release)}
        loaded = load(flow, url, store=store, executor=given)
        loop = loaded.run_iter()
        while next(loop) != "WAITING":
            pass
        until(started.exists)
        threading.Timer(0.2, release.touch).start()
        with pytest.raises(error):
            loop.throw(error())
        expected = "FAILURE" if error is LookupError else "SUSPENDED"
        assert loaded.storage.get_flow_state() == expected
        assert loaded.storage.get_atom_state("runs") == "SUCCESS"
        loaded.run()
        assert loaded.storage.get_flow_state() == "SUCCESS"
    if given is not None:
        given.stop()


def test_executor_can_start_again_after_interrupted_stop(tmp_path: Path) -> None:
    """Otherwise later requests would fail at once."""
    url = f"memory://{tmp_path.name}"
    with worker(url):
        for step in (15, 21, 24, 30):  # steps within `stop`
            executor = executors.WorkerTaskExecutor("e", "default", url=url)
            executor.start()
            assert interrupted(step, executor.stop)
            executor.start()
            future = executor.execute_task(tasks.Nothing(name="n"), "uuid", {})
            assert future.result(30) == (invocation.EXECUTED, None), step
            executor.stop()


def test_exchanges_of_one_broker_are_separate(url: str) -> None:
    flow = unordered_flow.Flow("f").add(*(tasks.Nothing(name=f"n{i}") for i in range(50)))
    with contextlib.ExitStack() as stack:
        _, mine = (
            stack.enter_context(worker(url, exchange=name, topic="t" * 120))
            for name in ("other", "mine")
        )
        loaded = run(flow, url, exchange="mine", transition_timeout=20)
        assert mine.counts == {"SUCCESS": 50}
    assert loaded.storage.get_flow_state() == "SUCCESS"


def test_engines_can_share_an_executor(url: str, tmp_path: Path) -> None:
    started, release = tmp_path / "started", tmp_path / "release"
    store = {"started": str(started), "release": str(release)}
    shared = executors.WorkerTaskExecutor("shared", "default", url=url)
    with worker(url, threads_count=2):
        assert shared.wait_for_workers(1, 60) == 0
        slow = load(
            linear_flow.Flow("slow").add(tasks.WaitFor()), url, executor=shared, store=store
        )
        running = threading.Thread(target=slow.run)
        running.start()
        until(started.exists)
        wide = unordered_flow.Flow("wide").add(*(tasks.Nothing(name=f"n{i}") for i in range(20)))
        other = run(wide, url, executor=shared)  # stops only its own resources
        suspended = load(linear_flow.Flow("s").add(tasks.Nothing()), url, executor=shared)
        next(suspended.run_iter())  # closed at once: suspends the flow
        release.touch()
        running.join(60)
    assert slow.storage.get_flow_state() == other.storage.get_flow_state() == "SUCCESS"
    assert slow.executor is shared
    shared.stop()
    assert not [t for t in threading.enumerate() if "wbengine-executor" in t.name]


def test_full_disk_delays_replies_but_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"filesystem://{tmp_path / 'broker'}"
    started, release = tmp_path / "started", tmp_path / "release"
    flow = linear_flow.Flow("f").add(tasks.WaitFor())
    loaded = load(flow, url, store={"started": str(started), "release": str(release)})
    refused: list[int] = []

    def full(*_: Any) -> int:
        refused.append(1)
        raise exceptions.TransportFailure("No space left on device")

    with worker(url):
        running = threading.Thread(target=loaded.run)
        running.start()
        until(started.exists)
        with monkeypatch.context() as patch:
            patch.setattr("wbengine.transports._folder.folder_tables.Folder.write_through", full)
            release.touch()
            until(lambda: len(refused) > 5)
            assert running.is_alive()
        running.join(60)
    assert loaded.storage.fetch("waited") == "released"


def test_removed_queues_and_bindings_are_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Broker, "declare_seconds", 0.1)
    broker = tmp_path / "broker"
    with worker(f"filesystem://{broker}"):
        shutil.rmtree(broker.rename(tmp_path / "away"))
        loaded = run(linear_flow.Flow("f").add(tasks.Nothing()), f"filesystem://{broker}")
    assert loaded.storage.get_flow_state() == "SUCCESS"


def test_worker_rejects_given_process_pool(url: str) -> None:
    with (
        futures.ProcessPoolExecutor(1) as pool,
        pytest.raises(ValueError, match="use processes_count instead"),
    ):
        workers.Worker("default", "t", [tasks], url=url, executor=pool)


def test_task_dropped_by_given_pool_fails(url: str) -> None:
    pool, release = futures.ThreadPoolExecutor(1), threading.Event()
    pool.submit(release.wait)  # the owner of the pool uses it too
    loaded = load(linear_flow.Flow("f").add(tasks.Nothing()), url)

    def drop() -> None:
        until(pool._work_queue.qsize)
        pool.shutdown(wait=False, cancel_futures=True)

    with worker(url, executor=pool, threads_count=None):
        dropping = threading.Thread(target=drop)
        dropping.start()
        with pytest.raises(exceptions.WrappedFailure, match="the pool dropped task"):
            loaded.run(timeout=20)
        dropping.join()
        release.set()


def test_hostile_messages_in_the_folder_are_ignored(tmp_path: Path) -> None:
    url = f"filesystem://{tmp_path / 'broker'}"
    folder = Folder(tmp_path / "broker")
    with worker(url) as attacked:
        [queue] = [name for name in folder.queues if name[:2] == "t."]
        for data in (b'{"type": "REQ', b"", bytes(range(256))):
            folder.put(queue, data)
            folder.put(attacked.identity, data)
        loaded = run(linear_flow.Flow("f").add(tasks.Add()), url, store={"x": 1, "y": 2})
        assert loaded.storage.fetch("sum") == 3
        until(lambda: len(folder.rejected) == 6)


def test_completed_flow_leaves_no_messages_or_rows_in_folder(tmp_path: Path) -> None:
    url = f"filesystem://{tmp_path / 'broker'}"
    flow = unordered_flow.Flow("wide").add(*(tasks.Nothing(name=f"n{i}") for i in range(100)))
    with worker(url):
        run(flow, url)
    assert Folder(tmp_path / "broker").left() == []
    assert ledgers.rows(tmp_path / "broker") == []
