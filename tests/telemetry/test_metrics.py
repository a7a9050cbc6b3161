"""Metrics of engines and workers, as Prometheus reads them."""

from __future__ import annotations

import gc
import re
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import celery
import pytest
from prometheus_client import CollectorRegistry

from tests.support import (
    engine_threads,
    fragile_tasks,
    fresh,
    key_files,
    paused_tasks,
    sample_tasks,
    waiting,
    workers,
)
from tests.telemetry import scraping
from tests.telemetry.scraping import value
from wbengine import engines, exceptions, operations, retry, task
from wbengine._calls import invocation
from wbengine.engines.worker_based import executor as executors
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._discovery import snapshots
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import worker_life
from wbengine.engines.worker_based._messages.request_messages import RequestMessage
from wbengine.engines.worker_based._worker_side import jobs
from wbengine.fleet import client as fleets
from wbengine.patterns import graph_flow, linear_flow, unordered_flow
from wbengine.persistence import backends
from wbengine.persistence._pauses import TaskPause
from wbengine.telemetry import _labels, _metric_definitions, metrics

#: A task that appends a line to a file.
NOTE = "tests.celery.tasks.note"

CANARY = "canary-5e1f"


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def scraped(registry: CollectorRegistry, *more: metrics.FleetCollector) -> scraping.Samples:
    return scraping.read(metrics.render(*more, registry=registry)[0].decode())


def fleet(folder: Path, count: int, *more: str) -> Any:
    arguments = ["--url", url(folder), "--topic", "t", "--metrics-addr", "127.0.0.1:0", *more]
    arguments += ["--tasks", "tests.support.sample_tasks", "--tasks", "tests.support.fragile_tasks"]
    return workers.workers(folder, *arguments, count=count)


def url(folder: Path) -> str:
    return f"filesystem://{folder / 'broker'}"


def load(flow: Any, folder: Path, **options: Any) -> Any:
    return engines.load(flow, engine="worker-based", url=url(folder), **options)


def run(registry: CollectorRegistry, flow: Any, remote: bool = False, **options: Any) -> None:
    """Run a flow whose metrics are in the registry."""
    engine = engines.load(flow, **options)
    with metrics.observe(engine, registry, remote=remote):
        engine.run()


class Stumbles(task.Task):
    """A task that fails in its first attempt."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.tries = 0

    def execute(self) -> None:
        self.tries += 1
        if self.tries == 1:
            raise ValueError(f"password={CANARY}")


class Stuck(task.Task):
    def execute(self) -> None:
        return None

    def revert(self, **rest: Any) -> None:
        raise RuntimeError("cannot be undone")


def add_up(x: int = 1) -> int:
    return x


# Workers. ----------------------------------------------------------------------------------------


def test_metrics_of_a_flow_on_two_workers_add_up(
    tmp_path: Path, registry: CollectorRegistry
) -> None:
    flow = linear_flow.Flow("sums").add(
        unordered_flow.Flow("all").add(
            *(sample_tasks.Add(f"a{n}", inject={"x": n, "y": 1}) for n in range(20)),
            *sample_tasks.meeting(tmp_path),
        ),
        sample_tasks.WriteFile("w", inject={"path": str(tmp_path / f"file-{CANARY}")}),
        sample_tasks.Fail("bad"),
    )
    with fleet(tmp_path, 2, "--threads", "1") as started:
        engine = load(flow, tmp_path)
        seen = metrics.FleetCollector(engine.executor.workers)
        assert engine.executor.wait_for_workers(2, 60) == 0
        fleet_seen = scraped(registry, seen)
        with metrics.observe(engine, registry), pytest.raises(ValueError):
            engine.run()
        engines_own = scraped(registry)
        pages = [scraping.get(scraping.place(worker, "/metrics")) for worker in started]
        assert [status for status, _ in pages] == [200, 200]
        each = [scraping.read(text) for _, text in pages]
    found = scraping.together([engines_own, *each])
    add = "tests.support.sample_tasks.Add"
    assert value(found, "wbengine_tasks_total", task=add, topic="t", state="SUCCESS") == 20
    ended = {s: value(found, "wbengine_tasks_total", state=s) for s in ("FAILURE", "REVERTED")}
    # The engine counts tasks without a `revert` method: no request is sent for them.
    assert ended == {"FAILURE": 1, "REVERTED": 24}
    took = "wbengine_task_duration_seconds_count"
    assert value(found, took, task=add, direction="execute") == 20
    write = "tests.support.sample_tasks.WriteFile"
    assert value(found, took, task=write, direction="revert") == 1
    assert all(value(one, "wbengine_tasks_total", topic="t") > 0 for one in each)
    assert value(found, "wbengine_flows_total", flow="sums", state="REVERTED") == 1
    assert value(found, "wbengine_flows_running") == 0
    assert value(engines_own, "wbengine_task_queue_wait_seconds_count", topic="t") == 25
    assert value(engines_own, "wbengine_task_queue_wait_seconds_sum") > 0
    # The engine and the workers report the same fleet.
    for name in ("wbengine_worker_slots", "wbengine_worker_last_seen_timestamp_seconds"):
        told = {key for one in each for key in one if key[0] == name}
        assert told == {key for key in fleet_seen if key[0] == name} and told
    assert value(fleet_seen, "wbengine_worker_slots", state="free") == 2
    assert CANARY not in str(found)
    check_labels(found)


def check_labels(found: scraping.Samples) -> None:
    """Check that all wbengine metrics have exactly their defined labels and no ids."""
    for name, theirs in found:
        if not name.startswith("wbengine_") or name.endswith("_created"):
            continue
        metric = (
            _metric_definitions.METRICS.get(name)
            or _metric_definitions.METRICS[re.sub("_(count|sum|bucket)$", "", name)]
        )
        assert {label for label, _ in theirs} - {"le"} == set(metric.labels), name
        for _, text in theirs:
            assert not re.search("[0-9a-f]{8}-[0-9a-f]{4}-|[0-9a-f]{16}", text), text


def test_worker_counts_tasks_that_run_in_its_children(tmp_path: Path) -> None:
    flow = unordered_flow.Flow("f").add(
        *(sample_tasks.Nothing(f"n{n}") for n in range(4)), sample_tasks.Die("dies")
    )
    with fleet(tmp_path, 1, "--processes", "2") as (worker,):
        with pytest.raises(exceptions.WbengineException):
            load(flow, tmp_path).run()
        found = scraping.read(scraping.get(scraping.place(worker, "/metrics"))[1])
    name = "wbengine_tasks_total"
    assert value(found, name, task="tests.support.sample_tasks.Nothing", state="SUCCESS") == 4
    assert value(found, name, task="tests.support.sample_tasks.Die", state="FAILURE") == 1


def test_failure_is_counted_once_by_worker_or_engine(
    tmp_path: Path, rowless_url: str, registry: CollectorRegistry
) -> None:
    """The worker counts a task whose child process died; the engine counts a task that no worker
    accepts.
    """
    place, other = rowless_url, CollectorRegistry()
    observer = metrics.WorkerObserver(other)
    options: dict[str, Any] = {"observers": [observer], "processes_count": 1}
    elsewhere = {"ledger": f"dir://{tmp_path}"}  # not the ledger of the worker
    with workers.worker_in_thread(place, sample_tasks, **options):
        for made, more in ((sample_tasks.Die("d"), {}), (sample_tasks.Nothing("n"), elsewhere)):
            flow = linear_flow.Flow("f").add(made)
            engine = engines.load(flow, engine="worker-based", url=place, **more)
            with metrics.observe(engine, registry), pytest.raises(exceptions.WbengineException):
                engine.run()
    died, left = "tests.support.sample_tasks.Die", "tests.support.sample_tasks.Nothing"
    assert tasks(scraped(other)) == {(died, "FAILURE"): 1}
    ours = {key: number for key, number in tasks(scraped(registry)).items() if key[1] == "FAILURE"}
    assert ours == {(left, "FAILURE"): 1}


def test_task_in_taskflow_mode_is_counted_once(registry: CollectorRegistry, place: str) -> None:
    """TaskFlow's protocol does not report when a task began."""
    other = CollectorRegistry()
    observer = metrics.WorkerObserver(other)
    with workers.worker_in_thread(place, sample_tasks, interop="taskflow", observers=[observer]):
        engine = engines.load(
            linear_flow.Flow("f").add(sample_tasks.Nothing("n")),
            engine="worker-based", url=place, interop="taskflow", topics=["t"],
        )  # fmt: skip
        with metrics.observe(engine, registry):
            engine.run()
    assert tasks(scraped(registry)) == {}
    assert tasks(scraped(other)) == {("tests.support.sample_tasks.Nothing", "SUCCESS"): 1}


def test_worker_counts_only_finished_executions(registry: CollectorRegistry) -> None:
    """Requests that are requeued or given up are counted elsewhere."""
    observer = metrics.WorkerObserver(registry)
    message = env.Envelope("REQUEST", {"task_name": "a"}, correlation_id="id", reply_to="engine")
    job = jobs.Job(RequestMessage.from_message(message), None)
    job.unit = pr.WorkUnit("tests.support.sample_tasks.Add", "a", "execute", {}, None, {}, None)
    observer.received(job)
    observer.started(job)
    for tell in (observer.returned, observer.refused, observer.given_up):
        tell(job)
    assert tasks(scraped(registry)) == {}
    observer.ended(job, invocation.Outcome(1))  # a result without a start time
    assert tasks(scraped(registry)) == {}
    observer.ended(job, invocation.Outcome(1, started=10.0, ended=12.0))
    assert tasks(scraped(registry)) == {("tests.support.sample_tasks.Add", "SUCCESS"): 1}
    assert value(scraped(registry), "wbengine_task_duration_seconds_sum") == 2


def test_tasks_of_celery_clients_are_counted(tmp_path: Path, redis_url: Any) -> None:
    arguments = ["--celery-queue", "celery", "--celery-broker", str(redis_url), "--threads", "1"]
    arguments += ["--celery-result-backend", str(redis_url), "--metrics-addr", "127.0.0.1:0"]
    arguments += ["--tasks", "tests.celery.tasks"]
    place = str(redis_url)
    client = celery.Celery("client", broker=place, backend=place, set_as_current=False)
    with workers.workers(tmp_path, *arguments, warnings="default") as (worker,):
        path = str(tmp_path / "notes")
        sent = [client.send_task(NOTE, (path, str(n))) for n in range(3)]
        sent.append(client.send_task(NOTE))  # arguments are missing
        for each in sent:
            each.get(timeout=90, propagate=False)
        ends = [each.state for each in sent]
        assert ends == ["SUCCESS"] * 3 + ["FAILURE"]
        page = scraping.place(worker, "/metrics")
        workers.until(lambda: "FAILURE" in scraping.get(page)[1])
        found = scraping.read(scraping.get(page)[1])
    counted = {s: value(found, "wbengine_tasks_total", state=s) for s in ("SUCCESS", "FAILURE")}
    assert counted == {"SUCCESS": 3, "FAILURE": 1}
    assert value(found, "wbengine_tasks_total", task=NOTE, topic="celery") == 4
    check_labels(found)


def test_dead_worker_disappears_and_its_task_is_counted_as_failure(
    tmp_path: Path, registry: CollectorRegistry
) -> None:
    flow = linear_flow.Flow("f").add(fragile_tasks.Once("o"))

    def slots_of(told: Any) -> set[Any]:
        return {key for key in told if key[0] == "wbengine_worker_slots"}

    with fleet(tmp_path, 2, "--threads", "1"):
        executor = executors.WorkerTaskExecutor(
            "e", "default", url=url(tmp_path), worker_expiry=4.0
        )
        seen = metrics.FleetCollector(executor.workers)
        assert executor.wait_for_workers(2, 60) == 0
        before = slots_of(scraped(registry, seen))
        engine = load(flow, tmp_path, store={"folder": str(tmp_path)}, executor=executor)
        with metrics.observe(engine, registry), pytest.raises(exceptions.WorkerLost):
            engine.run()
        # The ledger row may reveal the lost task before the worker expires.
        workers.until(lambda: len(slots_of(scraped(registry, seen))) < len(before))
        found = scraped(registry, seen)
        executor.stop()
    left = slots_of(found)
    assert left < before and len(left) == len(before) / 2 == 3
    assert value(found, "wbengine_tasks_total", state="FAILURE") == 1


# Engines. ----------------------------------------------------------------------------------------


def test_serial_engine_counts_results_retries_and_reverts(registry: CollectorRegistry) -> None:
    flow = graph_flow.Flow("f", retry=retry.Times(2))
    one, two = task.FunctorTask(add_up, name="one", provides="y"), Stumbles("two")
    left_out = sample_tasks.Nothing("left-out")
    flow.add(one, two, left_out)
    flow.link(one, two)
    flow.link(two, left_out, decider=lambda history: False)
    run(registry, flow)
    found = scraped(registry)
    assert tasks(found) == {
        ("tests.telemetry.test_metrics.add_up", "SUCCESS"): 2,
        ("tests.telemetry.test_metrics.add_up", "REVERTED"): 1,
        ("tests.telemetry.test_metrics.Stumbles", "SUCCESS"): 1,
        ("tests.telemetry.test_metrics.Stumbles", "FAILURE"): 1,
        ("tests.telemetry.test_metrics.Stumbles", "REVERTED"): 1,
        ("tests.support.sample_tasks.Nothing", "IGNORE"): 1,
    }
    assert value(found, "wbengine_task_retries_total") == 2
    assert value(found, "wbengine_flow_duration_seconds_count", flow="f") == 1
    assert CANARY not in str(found)
    check_labels(found)


def tasks(found: scraping.Samples) -> dict[tuple[str, str], float]:
    read = {}
    for (name, theirs), number in found.items():
        if name == "wbengine_tasks_total":
            read[dict(theirs)["task"], dict(theirs)["state"]] = number
    return read


def test_engine_counts_a_map_and_workers_count_its_items(
    registry: CollectorRegistry, place: str
) -> None:
    """The engine counts the Map as one task; workers count the items."""
    other = CollectorRegistry()
    add = sample_tasks.Add("a", inject={"y": 1})
    flow = linear_flow.Flow("f").add(task.Map(add, "xs", "x", name="all"))
    with workers.worker_in_thread(place, sample_tasks, observers=[metrics.WorkerObserver(other)]):
        run(registry, flow, engine="worker-based", url=place, store={"xs": [1, 2, 3]})
    one = "tests.support.sample_tasks.Add"
    assert tasks(scraped(other)) == {(one, "SUCCESS"): 3}
    assert tasks(scraped(registry)) == {(f"wbengine.task.Map({one})", "SUCCESS"): 1}


@task.task
def double(x: int) -> int:
    return 2 * x


@task.workflow
def order(steps: Any) -> int:
    return int(steps.run(double, x=1) + steps.run(double, x=2))


def test_steps_of_a_workflow_are_counted_by_their_task(registry: CollectorRegistry) -> None:
    run(registry, linear_flow.Flow("f").add(order("order")))
    module = "tests.telemetry.test_metrics"
    assert tasks(scraped(registry)) == {
        (f"{module}.double", "SUCCESS"): 2,
        (f"{module}.order", "SUCCESS"): 1,
    }


def test_resent_tasks_are_counted(registry: CollectorRegistry) -> None:
    engine = engines.load(linear_flow.Flow("f").add(sample_tasks.Nothing("n")))
    engine.compile()
    engine.prepare()
    record = engine.storage.record("n")
    record.state, record.attempt = "RUNNING", 1  # as if its engine had died
    with metrics.observe(engine, registry):
        engine.run()
    found = scraped(registry)
    assert value(found, "wbengine_tasks_resent_total", task="tests.support.sample_tasks.Nothing")


def test_requests_without_a_worker_are_counted(registry: CollectorRegistry, place: str) -> None:
    flow = unordered_flow.Flow("f").add(*(sample_tasks.Nothing(f"n{n}") for n in range(3)))
    engine = engines.load(flow, engine="worker-based", url=place)
    nothing = {"task": "tests.support.sample_tasks.Nothing"}
    with metrics.observe(engine, registry):
        thread = threading.Thread(target=engine.run)
        thread.start()
        name = "wbengine_requests_unserved"
        waiting.until(lambda: value(scraped(registry), name, **nothing) == 3)
        engine.suspend()
        thread.join(60)
    assert value(scraped(registry), name) == 0


def test_flows_are_counted_by_final_state(registry: CollectorRegistry) -> None:
    stops = task.FunctorTask(lambda: engine.suspend(), name="stops")
    engine = engines.load(linear_flow.Flow("two").add(stops, sample_tasks.Nothing("n")))
    with metrics.observe(engine, registry):
        engine.run()
        engine.run()
    stuck = engines.load(linear_flow.Flow("stuck").add(Stuck("s"), sample_tasks.Fail("bad")))
    with metrics.observe(stuck, registry), pytest.raises(Exception, match="undone"):
        stuck.run()
    found = scraped(registry)
    ends = {
        (dict(theirs)["flow"], dict(theirs)["state"]): number
        for (name, theirs), number in found.items()
        if name == "wbengine_flows_total"
    }
    expected = {("two", "SUSPENDED"): 1, ("two", "SUCCESS"): 1, ("stuck", "FAILURE"): 1}
    assert ends == expected
    assert value(found, "wbengine_tasks_total", state="REVERT_FAILURE") == 1


def test_running_flows_gauge_returns_to_zero(registry: CollectorRegistry) -> None:
    seen: list[float] = []

    def look() -> None:
        seen.append(value(scraped(registry), "wbengine_flows_running", flow="f"))

    run(registry, linear_flow.Flow("f").add(task.FunctorTask(look)))
    look()
    assert seen == [1, 0]


def test_dropped_engine_is_removed_from_running_flows(registry: CollectorRegistry) -> None:
    engine = engines.load(linear_flow.Flow("f").add(sample_tasks.Nothing("n")))
    metrics.MetricsListener(engine, registry).register()
    steps = engine.run_iter()
    next(steps)
    assert value(scraped(registry), "wbengine_flows_running") == 1
    engine.notifier.reset()  # the end is not reported, as for an engine without lease
    steps.close()
    engine.atom_notifier.reset()
    del engine, steps
    gc.collect()
    assert value(scraped(registry), "wbengine_flows_running") == 0


def test_engine_counts_remote_tasks_if_remote_is_set(
    registry: CollectorRegistry, place: str
) -> None:
    flow = linear_flow.Flow("f").add(sample_tasks.Add("a", inject={"x": 1, "y": 2}))
    with workers.worker_in_thread(place, sample_tasks, topic="video.hd"):
        run(registry, flow, engine="worker-based", url=place, remote=True)
    found = scraped(registry)
    name, add = "wbengine_tasks_total", "tests.support.sample_tasks.Add"
    assert value(found, name, task=add, topic="video.hd", state="SUCCESS") == 1
    assert sum(tasks(found).values()) == 1


def test_engines_with_shared_executor_count_only_their_own_tasks(
    tmp_path: Path, registry: CollectorRegistry, place: str
) -> None:
    """One engine starts before the other and ends after it."""
    other = CollectorRegistry()
    started, release = tmp_path / "started", tmp_path / "release"
    waits = sample_tasks.WaitFor("w", inject={"started": str(started), "release": str(release)})
    several = unordered_flow.Flow("f").add(*(sample_tasks.Nothing(f"n{n}") for n in range(5)))
    with workers.worker_in_thread(place, sample_tasks, threads_count=2):
        executor = executors.WorkerTaskExecutor("e", "default", url=place)
        executor.start()
        outer, inner = (
            engines.load(flow, engine="worker-based", executor=executor)
            for flow in (linear_flow.Flow("o").add(waits), several)
        )
        metrics.MetricsListener(outer, registry).register()
        metrics.MetricsListener(inner, other).register()
        thread = threading.Thread(target=outer.run)
        thread.start()
        workers.until(started.exists)
        inner.run()
        release.touch()
        thread.join(60)
        assert not thread.is_alive()
        assert executor._tracker.observers == ()  # the executor outlives its engines
        executor.stop()
    name = "wbengine_task_queue_wait_seconds_count"
    assert [value(scraped(each), name) for each in (registry, other)] == [1, 5]


# Labels and pages. -------------------------------------------------------------------------------


def test_number_and_length_of_label_values_are_bounded() -> None:
    bounded = _labels.Bounded(3)
    assert [bounded(text) for text in ("a", "b", "c", "d", "a", "e")] == [
        "a", "b", "c", "other", "a", "other",
    ]  # fmt: skip
    bounded = _labels.Bounded(2)
    made = {bounded(f"order-{uuid.uuid4()}") for _ in range(10)}
    made |= {bounded(f"order-{uuid.uuid4().hex}-x") for _ in range(10)}
    assert made == {"order-*", "order-*-x"}
    assert len(bounded("x" * 1000)) <= 120


def test_flow_names_with_special_characters_are_exported(registry: CollectorRegistry) -> None:
    """Surrogates cannot be encoded."""
    for name in ("a\ud800", "", 'b"\n\\', "nul\0", "\u00e9"):
        run(registry, linear_flow.Flow(name).add(sample_tasks.Nothing("n")))
    found = scraped(registry, metrics.FleetCollector(list, lambda: [("q\udfff", 1)]))
    named = {dict(theirs)["flow"] for name, theirs in found if name == "wbengine_flows_total"}
    assert named == {"a?", "", 'b"\n\\', "nul\0", "\u00e9"}
    assert value(found, "wbengine_queue_messages", queue="q?") == 1


def test_topic_label_is_derived_from_the_queue_name() -> None:
    queue = env.queue_name("exchange", "video.hd", ["a.Task"])
    assert queue != "video.hd" and _labels.of_topic(queue) == "video.hd"
    assert _labels.of_topic("video.hd") == "video.hd"  # a queue of TaskFlow's workers
    assert _labels.of_topic(None) == _labels.of_topic("") == ""


def test_flow_labels_above_the_limit_become_other(registry: CollectorRegistry) -> None:
    for number in range(150):
        run(registry, linear_flow.Flow(f"f{number}").add(sample_tasks.Nothing("n")))
    found = scraped(registry)
    flows = [key for key in found if key[0] == "wbengine_flows_total"]
    assert len(flows) == 101
    assert value(found, "wbengine_flows_total", flow="other") == 50


def test_tasks_of_paused_type_are_counted_until_it_is_resumed(registry: CollectorRegistry) -> None:
    paused_tasks.clear()
    types = "tests.support.paused_tasks."
    flow = unordered_flow.Flow("f").add(
        paused_tasks.Charge("first"),
        paused_tasks.Charge("second"),
        paused_tasks.Ship("ship"),
        task.Map(paused_tasks.Item(), over="numbers", item="item", name="items"),
    )
    with backends.backend("memory://") as store:
        for name in ("Charge", "Item"):
            operations.pause_tasks(store, f"{types}{name}")
        engine = engines.load(flow, backend=store, store={"numbers": [1, 2, 3]})
        with metrics.observe(engine, registry), engine_threads.Running(engine) as run:
            waiting.until(lambda: sum(engine.paused_tasks().values()) == 5)
            found = scraped(registry)
            by_task = {
                dict(theirs)["task"]: number
                for (name, theirs), number in found.items()
                if name == "wbengine_tasks_paused"
            }
            assert by_task == {f"{types}Charge": 2, f"{types}Item": 3}
            check_labels(found)
            for name in ("Charge", "Item"):
                operations.resume_tasks(store, f"{types}{name}")
        assert run.end() == "SUCCESS"
    assert value(scraped(registry), "wbengine_tasks_paused") == 0


def test_pauses_are_exported_by_pattern_up_to_a_limit(registry: CollectorRegistry) -> None:
    patterns = [*(f"shop.n{number}" for number in range(1001)), f"shop.{uuid.uuid4()}"]
    found = scraped(
        registry, metrics.FleetCollector(list, None, lambda: [TaskPause(p) for p in patterns])
    )
    name = "wbengine_task_pauses"
    assert value(found, name) == 1002
    assert value(found, name, pattern="shop.n7") == 1 and value(found, name, pattern="other") == 2


def test_flows_that_wait_for_code_are_exported(registry: CollectorRegistry) -> None:
    collector = metrics.FleetCollector(list, waits_for_code=lambda: {"shop:v43": 7})
    found = scraped(registry, collector)
    assert value(found, "wbengine_flows_waiting_for_code", code="shop:v43") == 7


def test_queues_are_exported_when_workers_cannot_be_listed(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Iterator[Any]:
        raise ConnectionError("no broker")

    fleet = metrics.FleetCollector(broken, lambda: [("q", 3), ("r", 0)])
    found = scraped(registry, fleet)
    assert value(found, "wbengine_queue_messages", queue="q") == 3
    assert not [key for key in found if key[0].startswith("wbengine_worker")]
    assert "cannot determine a part of the metrics: no broker" in caplog.text


def test_reference_generates_the_tables_of_all_metrics() -> None:
    page = workers.REPOSITORY / "doc" / "source" / "reference" / "metrics.rst"
    tables = re.findall(r"^\.\. metrics:: (\S+)$", page.read_text("utf-8"), re.MULTILINE)
    assert tables == [
        f"{_metric_definitions.__name__}:METRICS",
        f"{_metric_definitions.__name__}:MESSAGING",
    ]


def test_slots_are_reported_by_state_of_the_worker(registry: CollectorRegistry) -> None:
    """Free slots of a suspended worker are closed; dead workers have no slots; TaskFlow's workers
    have
    no name.
    """

    def worker(name: str | None, state: str, running: int) -> snapshots.WorkerSnapshot:
        known = worker_life.Life(state) if name else None
        return snapshots.WorkerSnapshot(name, ("t",), ("q",), (), 4, running, 1000.0, known)

    fleet = [
        worker("host-1-aaaaaaaa", worker_life.BUSY, 3),
        worker("host-2-bbbbbbbb", worker_life.SUSPENDED, 1),
        worker("host-3-cccccccc", worker_life.DEAD, 2),
        worker(None, "", 1),
    ]
    found = scraped(registry, metrics.FleetCollector(lambda: fleet))
    told = {
        (dict(theirs)["worker"], dict(theirs)["state"]): number
        for (name, theirs), number in found.items()
        if name == "wbengine_worker_slots" and number
    }
    assert told == {
        ("host-1", "busy"): 3,
        ("host-1", "free"): 1,
        ("host-2", "busy"): 1,
        ("host-2", "closed"): 3,
        ("t", "busy"): 1,
        ("t", "free"): 3,
    }
    seen = "wbengine_worker_last_seen_timestamp_seconds"
    assert value(found, seen, worker="host-2") == 1000 and value(found, seen) == 3000


def test_page_of_two_fleets_names_each_metric_once(registry: CollectorRegistry) -> None:
    collectors = [metrics.FleetCollector(list, lambda n=n: [(n, 1)]) for n in "ab"]
    found = scraped(registry, *collectors)
    assert value(found, "wbengine_queue_messages") == 2


def test_missing_package_error_contains_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    engine = engines.load(linear_flow.Flow("f").add(sample_tasks.Nothing("n")))
    for call in (lambda: metrics.MetricsListener(engine), metrics.render):
        with pytest.raises(ImportError, match=r"pip install .*\[metrics\]'"):
            call()


@pytest.mark.slow
def test_optional_packages_are_not_imported_by_default() -> None:
    script = """
import sys
import wbengine.worker, wbengine.engines, wbengine.telemetry._metric_definitions
assert wbengine.worker.main(["--topic", "t"]) == 2
assert wbengine.engines.load
from wbengine.engines.worker_based import worker, engine
bad = [m for m in sys.modules if m.startswith(("prometheus_client", "opentelemetry", "http.server"))
       or (m.startswith("wbengine.telemetry.") and m != "wbengine.telemetry._metric_definitions")]
assert not bad, bad
"""
    fresh.run(script)


def test_unsigned_messages_are_counted(tmp_path: Path) -> None:
    file = key_files.shared(tmp_path / "keys.json")
    with fleet(tmp_path, 1, "--keys", str(file)) as [worker]:
        page = scraping.place(worker, "/metrics")

        def refused() -> float:
            return value(scraping.read(scraping.get(page)[1]), "wbengine_untrusted_messages_total")

        assert refused() == 0
        with fleets.Fleet(url=url(tmp_path), keys="none") as asking:
            asking.ping(timeout=0.1)
            workers.until(lambda: refused() > 0)
