"""Traces of flows on engines and workers."""

from __future__ import annotations

import gc
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace

from tests.support import sample_tasks, workers
from tests.telemetry import spans
from wbengine import engines, retry, task
from wbengine.engines.worker_based import executor as executors
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.telemetry import _processing, _providers, tracing

CANARY = "canary-77ab"


def named(found: list[spans.Spent], name: str) -> spans.Spent:
    (one,) = [span for span in found if span.name == name]
    return one


def run(memory: spans.Memory, flow: Any, **options: Any) -> None:
    """Run a flow whose spans are in the memory."""
    engine = engines.load(flow, **options)
    with tracing.instrument(engine, memory.provider):
        engine.run()


class Rolls(task.Task):
    """A task that fails in its first attempt with a secret in its message."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.tries = 0

    def execute(self, secret: str) -> str:
        self.tries += 1
        if self.tries == 1:
            raise ValueError(f"it does not work with {secret}")
        return secret


class Traces(task.Task):
    """A task that creates a span."""

    def execute(self) -> str:
        with trace.get_tracer("user", tracer_provider=PROVIDERS[-1]).start_as_current_span("own"):
            return "done"


class TracesLater(Traces):
    async def execute(self) -> str:  # type: ignore[override]
        with trace.get_tracer("user", tracer_provider=PROVIDERS[-1]).start_as_current_span("own"):
            return "done"


PROVIDERS: list[Any] = []


# Workers. ----------------------------------------------------------------------------------------


def test_engine_and_two_workers_share_one_trace(tmp_path: Path, memory: spans.Memory) -> None:
    place = f"filesystem://{tmp_path / 'broker'}"
    flow = linear_flow.Flow("sums").add(
        unordered_flow.Flow("all").add(
            *(sample_tasks.Add(f"a{n}", inject={"x": n, "y": 1}) for n in range(4)),
            *sample_tasks.meeting(tmp_path),
        ),
        sample_tasks.WriteFile("w", inject={"path": str(tmp_path / CANARY)}),
        sample_tasks.Fail("bad"),
    )
    arguments = ["--url", place, "--topic", "maths", "--tasks", "tests.support.sample_tasks"]
    arguments += ["--threads", "1", "--traces"]
    environment = {"OTEL_TRACES_EXPORTER": "console"}
    with workers.workers(tmp_path, *arguments, count=2, environment=environment) as started:
        executor = executors.WorkerTaskExecutor("e", "default", url=place)
        assert executor.wait_for_workers(2, 60) == 0
        engine = engines.load(flow, engine="worker-based", executor=executor)
        traced = tracing.instrument(engine, memory.provider)
        with pytest.raises(ValueError):
            engine.run()
        traced.uninstrument()
        executor.stop()
        assert [worker.stop() for worker in started] == [0, 0]
        told = [spans.printed(worker.text) for worker in started]
    assert all(told), "one of the workers had nothing to do"
    names = [*(f"a{n}" for n in range(4)), "one", "other"]
    every = [*memory.spans, *(span for of in told for span in of)]
    assert len({span.trace for span in every}) == 1
    process = ["process maths"]
    adds = [[f"execute {name}", ["send maths", process]] for name in names]
    adds += [[f"revert {name}"] for name in names]
    assert spans.tree(every) == [[
        "flow sums",
        *sorted([
            *adds,
            ["execute w", ["send maths", process]],
            ["revert w", ["send maths", process]],
            ["execute bad", ["send maths", process]],
            ["revert bad"],
        ]),
    ]]  # fmt: skip
    by_id = {span.id: span for span in every}
    for span in (span for of in told for span in of):
        assert span.parent is not None and span.links == [span.parent]
        sent, done = by_id[span.parent].attributes, span.attributes
        assert (by_id[span.parent].kind, span.kind) == ("PRODUCER", "CONSUMER")
        for name in ("messaging.message.id", "messaging.message.conversation_id"):
            assert sent[name] == done[name]
        assert (done["messaging.system"], done["messaging.operation.name"]) == (
            "filesystem",
            "process",
        )
        assert done["messaging.destination.name"] == "maths"
        assert done["wbengine.flow.uuid"] == engine.storage.flow_uuid
    check_failures(every)
    assert CANARY not in str(every)


def check_failures(every: list[spans.Spent]) -> None:
    """Check that exactly the failed spans are marked, with the type of their error."""
    failed = {span.name: span.attributes["error.type"] for span in every if span.failed}
    assert set(failed) == {"flow sums", "execute bad", "process maths"}
    assert set(failed.values()) == {"ValueError"}
    flow = named(every, "flow sums")
    assert flow.attributes["wbengine.flow.state"] == "REVERTED"
    assert flow.kind == "INTERNAL" and flow.parent is None
    bad = named(every, "execute bad").attributes
    assert bad["wbengine.atom.name"] == "bad" and bad["wbengine.attempt"] == 1
    undone = named(every, "revert w").attributes
    assert (undone["wbengine.direction"], undone["wbengine.attempt"]) == ("revert", 2)


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_trace_context_passes_through_every_broker(
    broker_servers: Any, broker: str, memory: spans.Memory
) -> None:
    observer = _processing.WorkerTracing(memory.provider)
    with (
        broker_servers[broker].place() as place,
        workers.worker_in_thread(place, sample_tasks, observers=[observer], topic="m") as worker,
    ):
        observer.worker, observer.system = worker.identity, worker.system
        flow = linear_flow.Flow("f").add(*(sample_tasks.Nothing(f"n{n}") for n in range(3)))
        run(memory, flow, engine="worker-based", url=place)
    below = ["send m", ["process m"]]
    expected = ["flow f", *([f"execute n{n}", below] for n in range(3))]
    assert spans.tree(memory.spans) == [expected]
    (queue,) = worker.queues.values()
    for span in memory.spans:
        if "m" in span.name.split():
            told = span.attributes
            assert told["messaging.system"] == broker
            key = told.get("messaging.rabbitmq.destination.routing_key")
            assert key == (queue if broker == "rabbitmq" else None)


def test_worker_traces_requests_of_untraced_engines(memory: spans.Memory, place: str) -> None:
    """Its tasks run in child processes without a trace context."""
    observer = _processing.WorkerTracing(memory.provider)
    with workers.worker_in_thread(place, sample_tasks, observers=[observer], processes_count=1):
        engines.run(
            linear_flow.Flow("f").add(sample_tasks.Add("a", inject={"x": 1, "y": 2})),
            engine="worker-based", url=place,
        )  # fmt: skip
    (span,) = memory.spans
    assert (span.name, span.parent, span.links) == ("process t", None, [])


def test_spans_of_task_body_are_children_of_the_worker_span(
    memory: spans.Memory, place: str
) -> None:
    PROVIDERS.append(memory.provider)
    observer = _processing.WorkerTracing(memory.provider)
    flow = linear_flow.Flow("f").add(Traces("plain"), TracesLater("async"))
    with workers.worker_in_thread(place, Traces, TracesLater, observers=[observer]):
        run(memory, flow, engine="worker-based", url=place)
    below = ["send t", ["process t", ["own"]]]
    expected = ["flow f", ["execute async", below], ["execute plain", below]]
    assert spans.tree(memory.spans) == [expected]


def test_noop_provider_sends_no_trace_context(memory: spans.Memory, place: str) -> None:
    """The no-op provider of the API produces no context to send or store."""
    observer = _processing.WorkerTracing(memory.provider)
    with workers.worker_in_thread(place, sample_tasks, observers=[observer]):
        engine = engines.load(
            linear_flow.Flow("f").add(sample_tasks.Nothing("n")), engine="worker-based", url=place
        )
        with tracing.instrument(engine, trace.NoOpTracerProvider()):
            engine.run()
    assert [span.parent for span in memory.spans] == [None]
    assert engine.storage.flow_meta.get(tracing.META_KEY) is None


# Engines. ----------------------------------------------------------------------------------------


def test_retries_and_reversions_have_spans(memory: spans.Memory) -> None:
    flow = linear_flow.Flow("f", retry=retry.Times(2, "again")).add(
        Rolls("dice"), sample_tasks.Nothing("n")
    )
    run(memory, flow, store={"secret": CANARY})
    found = memory.spans
    attempts = {
        (span.name, span.attributes["wbengine.attempt"]): span.attributes["wbengine.atom.state"]
        for span in found
        if "wbengine.attempt" in span.attributes
    }
    assert attempts == {
        ("execute again", 1): "SUCCESS",
        ("execute dice", 1): "FAILURE",
        ("revert dice", 2): "REVERTED",
        ("execute again", 2): "SUCCESS",
        ("execute dice", 3): "SUCCESS",
        ("execute n", 1): "SUCCESS",
    }
    flow_span = named(found, "flow f")
    assert [event["name"] for event in flow_span.told["events"]] == ["retrying"]
    assert not flow_span.failed
    assert CANARY not in str(found)


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_spans_of_task_body_are_children_of_the_atom_span(memory: spans.Memory, kind: str) -> None:
    PROVIDERS.append(memory.provider)
    engine = engines.load(
        linear_flow.Flow("f").add(Traces("plain"), TracesLater("async")), engine=kind
    )
    user = memory.provider.get_tracer("user")
    with tracing.instrument(engine, memory.provider), user.start_as_current_span("request"):
        engine.run()
    assert spans.tree(memory.spans) == [
        ["request", ["flow f", ["execute async", ["own"]], ["execute plain", ["own"]]]]
    ]


def test_resumed_flow_links_to_its_first_run(memory: spans.Memory) -> None:
    stops = task.FunctorTask(lambda: engine.suspend(), name="stops")
    flow = linear_flow.Flow("f").add(stops, sample_tasks.Nothing("n"))
    from wbengine.persistence import backends
    from wbengine.utils import persistence_utils as utils

    backend = backends.fetch({"connection": "memory"})
    book = utils.temporary_log_book(backend)
    detail = utils.create_flow_detail(flow, book, backend)
    engine = engines.load(flow, flow_detail=detail, backend=backend, book=book)
    with tracing.instrument(engine, memory.provider):
        engine.run()
    with backend.get_connection() as connection:
        (kept,) = connection.get_logbook(book.uuid)
    run(memory, flow, flow_detail=kept, backend=backend, book=book)
    first, second = [span for span in memory.spans if span.name == "flow f"]
    assert first.attributes["wbengine.flow.state"] == "SUSPENDED"
    assert (first.links, second.links) == ([], [first.id])
    assert first.trace != second.trace
    linked = second.told["links"][0]["context"]["trace_id"]
    assert linked == first.trace


def test_uninstrumented_engine_leaves_no_span_open(memory: spans.Memory) -> None:
    engine = engines.load(linear_flow.Flow("f").add(sample_tasks.Nothing("n")))
    traced = tracing.instrument(engine, memory.provider)
    steps = engine.run_iter()
    next(steps)
    traced.uninstrument()
    steps.close()
    assert [span.name for span in memory.spans] == ["flow f"]
    assert "wbengine.flow.state" not in memory.spans[0].attributes


def test_instrument_twice_records_each_span_once(memory: spans.Memory) -> None:
    engine = engines.load(linear_flow.Flow("f").add(sample_tasks.Nothing("n")))
    assert tracing.instrument(engine, memory.provider) is tracing.instrument(engine)
    engine.run()
    assert spans.tree(memory.spans) == [["flow f", ["execute n"]]]
    with pytest.raises(TypeError):
        tracing.instrument(None)
    del engine
    gc.collect()
    assert not tracing._INSTRUMENTED


def test_instrument_after_uninstrument_uses_the_new_provider(memory: spans.Memory) -> None:
    """After `uninstrument`, the next call may choose another provider."""
    engine, other = (
        engines.load(linear_flow.Flow("f").add(sample_tasks.Nothing("n"))),
        spans.Memory(),
    )
    tracing.instrument(engine, other.provider).uninstrument()
    with tracing.instrument(engine, memory.provider):
        engine.run()
    assert (len(memory.spans), other.spans) == (2, [])


def test_span_names_and_attributes_are_encodable(memory: spans.Memory, place: str) -> None:
    """An exporter drops a whole batch that contains text it cannot encode."""
    observer = _processing.WorkerTracing(memory.provider)
    flow = linear_flow.Flow("f\ud800").add(sample_tasks.Nothing("n\udfff"))
    with workers.worker_in_thread(place, sample_tasks, observers=[observer]):
        run(memory, flow, engine="worker-based", url=place)
    assert spans.tree(memory.spans) == [["flow f?", ["execute n?", ["send t", ["process t"]]]]]
    for span in memory.spans:
        told = "".join((span.name, *map(str, span.attributes.values())))
        assert told == told.encode("utf-8", "replace").decode()


def test_no_trace_state_remains_after_the_run(memory: spans.Memory, place: str) -> None:
    from wbengine.telemetry import _contexts

    observer = _processing.WorkerTracing(memory.provider)
    flow = unordered_flow.Flow("f").add(*(sample_tasks.Nothing(f"n{n}") for n in range(20)))
    flow.add(sample_tasks.Fail("bad"))
    with workers.worker_in_thread(place, sample_tasks, observers=[observer]):
        engine = engines.load(flow, engine="worker-based", url=place)
        with tracing.instrument(engine, memory.provider), pytest.raises(ValueError):
            engine.run()
    assert not _contexts._CONTEXTS and not observer._running


# Missing packages. --------------------------------------------------------------------------------


def test_missing_package_error_contains_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    engine = engines.load(linear_flow.Flow("f").add(sample_tasks.Nothing("n")))
    with pytest.raises(ImportError, match=r"pip install .*\[otel\]'"):
        tracing.instrument(engine)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    assert not _providers.are_requested("traces")


def test_worker_with_missing_exporter_exits_with_its_name(tmp_path: Path) -> None:
    """The named exporter is not installed."""
    arguments = [
        "--url",
        f"filesystem://{tmp_path}",
        "--topic",
        "t",
        "--tasks",
        "tests.support.sample_tasks",
    ]
    environment = {"OTEL_TRACES_EXPORTER": "zipkin"}
    with workers.workers(tmp_path, *arguments, environment=environment) as (worker,):
        assert worker.wait() == 2
        assert re.search("must name .* exporter, got 'zipkin'; installed: console", worker.text)
        assert len(worker.text.splitlines()) == 1
    assert "OTEL_TRACES_EXPORTER" not in os.environ


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_environment_variables_decide_whether_traces_are_requested(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], wanted: bool
) -> None:
    for name in ("OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert _providers.are_requested("traces") is wanted
