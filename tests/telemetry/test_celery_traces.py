"""Traces of tasks that go through Celery's messages."""

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

#: Seconds: a worker and its child are to begin first.
PATIENCE = 90

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


pytestmark = pytest.mark.timeout(240)


@dataclass(frozen=True)
class Ran:
    """What one worker, whose tasks run in a child, did for a client and for a flow."""

    #: The number of its process, and its spans, in the order in which they ended.
    pid: int
    spans: list[spans.Spent]
    #: The id of the first task, and what tasks saw: that, the next one of its chain, and one that
    #: was sent without a word of where it belongs.
    first: str
    seen: list[Any]
    #: The spans of a flow, and what its task saw.
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


def test_what_a_client_began_goes_on_in_a_worker_and_its_children(ran: Ran) -> None:
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


def test_a_flow_and_who_runs_its_celery_tasks_are_one_trace(ran: Ran) -> None:
    found = [*ran.flow, ran.spans[-1]]
    assert spans.tree(found) == [["flow f", ["execute there", ["process celery"]]]]
    assert len({span.trace for span in found}) == 1
    assert ran.there[2] == found[-1].id


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
    with kombu.Connection(str(redis_url)) as connection, connection.SimpleQueue("celery") as left:
        told = [left.get(timeout=5).headers.get("traceparent") for _ in range(4)]
    assert told[1] == told[3] == own["traceparent"]
    assert told[0] is not None and TRACE not in told[0]
    assert told[2] is None
