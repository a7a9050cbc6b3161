"""Traces of tasks that pass through Celery's messages."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import celery
import kombu
import pytest

from tests.support import workers
from tests.telemetry import spans
from wbengine import engines
from wbengine.interop.celery import CeleryTask
from wbengine.patterns import linear_flow
from wbengine.telemetry import tracing

TELLS = "tests.telemetry.joined_tasks.Tells"
FAILS = "tests.support.sample_tasks.Fail"

#: Seconds, including the start of a worker and its child process.
PATIENCE = 90

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@dataclass(frozen=True)
class Ran:
    """Spans that one worker with child processes recorded for a client and for a flow."""

    #: Process id of the worker, and its spans in the order of their end.
    pid: int
    spans: list[spans.Spent]
    #: Id of the first task; values seen by the first task, by the next task of its chain, and by a
    #: task that was sent without a trace context.
    first: str
    seen: list[Any]
    #: Spans of a flow, and the value that its task saw.
    flow: list[spans.Spent]
    there: Any


@pytest.fixture(scope="module")
def ran(broker_servers: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    with broker_servers["redis"].place() as url:
        arguments = ["--celery-queue", "celery", "--celery-broker", str(url), "--processes", "1"]
        arguments += ["--celery-result-backend", str(url), "--traces"]
        for module in ("tests.telemetry.joined_tasks", "tests.support.sample_tasks"):
            arguments += ["--tasks", module]
        environment = {"OTEL_TRACES_EXPORTER": "console"}
        folder = tmp_path_factory.mktemp("worker")
        with workers.workers(folder, *arguments, environment=environment, warnings="default") as (
            worker,
        ):
            app = celery.Celery("client", broker=str(url), backend=str(url), set_as_current=False)
            headers = {"traceparent": f"00-{TRACE}-{SPAN}-01"}  # as instrumented clients send it
            after = app.signature(TELLS, immutable=True, task_id=str(uuid.uuid4()))
            first = app.send_task(TELLS, headers=headers, chain=[after])
            results = [first, app.AsyncResult(after.id)]
            seen = [result.get(timeout=PATIENCE) for result in results]
            failed = app.send_task(FAILS, headers=headers)
            failed.get(timeout=PATIENCE, propagate=False)
            assert failed.state == "FAILURE"
            seen.append(app.send_task(TELLS).get(timeout=PATIENCE))
            memory = spans.Memory()
            made = CeleryTask(TELLS, str(url), "there", "seen", result_backend=str(url))
            engine = engines.load(linear_flow.Flow("f").add(made))
            with tracing.instrument(engine, memory.provider):
                engine.run()
            assert worker.stop() == 0
            printed = spans.printed(worker.text)
            there = engine.storage.fetch("seen")
            yield Ran(worker.process.pid, printed, first.id, seen, memory.spans, there)


@pytest.mark.slow
def test_trace_of_client_continues_in_worker_and_child_processes(ran: Ran) -> None:
    assert {span.name for span in ran.spans} == {"process celery"}
    first, second, bad, other, _ = ran.spans
    assert [span.trace for span in (first, second, bad)] == [f"0x{TRACE}"] * 3
    assert [first.parent, second.parent, bad.parent] == [f"0x{SPAN}", first.id, f"0x{SPAN}"]
    assert [first.links, second.links, other.links] == [[f"0x{SPAN}"], [first.id], []]
    assert (other.parent, other.trace == first.trace) == (None, False)
    for span, told in zip((first, second, other), ran.seen, strict=True):
        pid, trace_id, current, parent = told
        assert pid != ran.pid
        assert (trace_id, current, parent) == (span.trace, span.id, span.id)
    assert [span.failed for span in ran.spans] == [False, False, True, False, False]
    assert bad.attributes["error.type"] == "ValueError"
    said = first.attributes
    assert said["messaging.system"] == "redis"
    assert said["messaging.destination.name"] == "celery"
    assert (said["wbengine.task"], said["wbengine.attempt"]) == (TELLS, 1)
    assert said["messaging.message.id"].startswith(ran.first)


def test_flow_and_its_celery_tasks_share_one_trace(ran: Ran) -> None:
    found = [*ran.flow, ran.spans[-1]]
    assert spans.tree(found) == [["flow f", ["execute there", ["process celery"]]]]
    assert len({span.trace for span in found}) == 1
    assert ran.there[2] == found[-1].id


def test_untraced_flow_sends_no_trace_context(redis_url: Any) -> None:
    """A traceparent header that the user sets stays unchanged."""
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
    with kombu.Connection(str(redis_url)) as connection, connection.SimpleQueue("celery") as left:
        told = [left.get(timeout=5).headers.get("traceparent") for _ in range(4)]
    assert told[1] == told[3] == own["traceparent"]
    assert told[0] is not None and TRACE not in told[0]
    assert told[2] is None
