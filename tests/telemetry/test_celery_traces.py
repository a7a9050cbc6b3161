"""Traces of tasks that go through Celery's messages."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from tests import celery_errands, workers
from tests.telemetry import spans
from wbengine import engines
from wbengine.interop.celery import CeleryTask
from wbengine.patterns import linear_flow
from wbengine.telemetry import tracing

TELLS = "tests.telemetry.joined_tasks.Tells"
FAILS = "tests.sample_tasks.Fail"

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def memory() -> spans.Memory:
    return spans.Memory()


def traced(folder: Path, url: Any, *more: str) -> Any:
    """A worker that runs tasks for Celery's clients, and prints its spans."""
    arguments = ["--celery-queue", "celery", "--celery-broker", str(url), "--traces", *more]
    arguments += ["--celery-result-backend", str(url)]
    for module in ("tests.celery_errands", "tests.telemetry.joined_tasks", "tests.sample_tasks"):
        arguments += ["--tasks", module]
    return workers.workers(folder, *arguments, environment={"OTEL_TRACES_EXPORTER": "console"})


def signature(name: str) -> dict[str, Any]:
    return {
        "task": name, "args": [], "kwargs": {}, "options": {"task_id": str(uuid.uuid4())},
        "subtask_type": None, "immutable": True,
    }  # fmt: skip


def test_what_a_client_began_goes_on_in_a_worker_and_its_children(
    tmp_path: Path, redis_url: Any
) -> None:
    client = celery_errands.Client(redis_url, redis_url)
    with traced(tmp_path, redis_url, "--processes", "1") as (worker,):
        headers = {"traceparent": f"00-{TRACE}-{SPAN}-01"}  # as instrumented clients send it
        after = signature(TELLS)
        told = client.send(TELLS, extra=headers, chain=(after,))
        seen = [client.ended(name)["result"] for name in (told, after["options"]["task_id"])]
        failed = client.send(FAILS, extra=headers)
        assert client.ended(failed)["status"] == "FAILURE"
        alone = client.ended(client.send(TELLS))["result"]
        assert worker.stop() == 0
        found = spans.printed(worker.text)
    first, second, bad, other = found
    assert {span.name for span in found} == {"process celery"}
    assert [span.trace for span in (first, second, bad)] == [f"0x{TRACE}"] * 3
    assert [first.parent, second.parent, bad.parent] == [f"0x{SPAN}", first.id, f"0x{SPAN}"]
    assert [first.links, second.links, other.links] == [[f"0x{SPAN}"], [first.id], []]
    assert (other.parent, other.trace == first.trace) == (None, False)
    for span, (pid, trace_id, current, parent) in zip(
        (first, second, other), (*seen, alone), strict=True
    ):
        assert pid != worker.process.pid
        assert (trace_id, current, parent) == (span.trace, span.id, span.id)
    assert [span.failed for span in found] == [False, False, True, False]
    assert bad.attributes["error.type"] == "ValueError"
    said = first.attributes
    assert said["messaging.system"] == "redis"
    assert said["messaging.destination.name"] == "celery"
    assert (said["wbengine.task"], said["wbengine.attempt"]) == (TELLS, 1)
    assert said["messaging.message.id"].startswith(told)


def test_a_flow_and_who_runs_its_celery_tasks_are_one_trace(
    tmp_path: Path, redis_url: Any, memory: spans.Memory
) -> None:
    made = CeleryTask(TELLS, str(redis_url), "there", "seen", result_backend=str(redis_url))
    with traced(tmp_path, redis_url, "--threads", "1") as (worker,):
        engine = engines.load(linear_flow.Flow("f").add(made))
        with tracing.instrument(engine, memory.provider):
            engine.run()
        assert worker.stop() == 0
        found = [*memory.spans, *spans.printed(worker.text)]
    assert spans.tree(found) == [["flow f", ["execute there", ["process celery"]]]]
    assert engine.storage.fetch("seen")[2] == found[-1].id


def test_nothing_is_said_of_a_flow_that_nobody_traces(redis_url: Any) -> None:
    """Nor is what somebody said changed."""
    own = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
    options = {"result_backend": str(redis_url), "ignore_result": True}
    flow = linear_flow.Flow("f").add(
        CeleryTask(TELLS, str(redis_url), "bare", **options),
        CeleryTask(TELLS, str(redis_url), "said", headers=own, **options),
    )
    engine = engines.load(flow)
    listener = tracing.instrument(engine, spans.Memory().provider)
    engine.run()
    listener.uninstrument()
    engine.reset()
    engine.run()
    left = celery_errands.Client(redis_url, redis_url).left()
    told = [message.headers.get("traceparent") for message in left]
    assert told[1] == told[3] == own["traceparent"]
    assert told[0] is not None and TRACE not in told[0]
    assert told[2] is None
