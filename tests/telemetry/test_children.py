"""Spans seen by task bodies in other processes."""

from __future__ import annotations

import os
import threading
from concurrent import futures
from typing import Any

import pytest

from tests.support import sample_tasks, workers
from tests.telemetry import joined_tasks, spans
from wbengine import engines, exceptions
from wbengine.patterns import linear_flow
from wbengine.telemetry import _processing, tracing


def flow() -> Any:
    return linear_flow.Flow("f").add(
        joined_tasks.Tells("plain", provides="plain"),
        joined_tasks.TellsLater("async", provides="async"),
    )


def check(engine: Any, found: list[spans.Spent], names: dict[str, str]) -> None:
    """Check that each task saw the span with the given name below its atom."""
    by_id = {span.id: span for span in found}
    for task, name in names.items():
        pid, trace_id, current, parent = engine.storage.fetch(task)
        assert pid != os.getpid()
        span = by_id[current]
        assert (span.name, span.trace) == (name, trace_id)
        assert parent == current
        atom = (
            span
            if span.name.startswith("execute")
            else by_id[by_id[span.parent or ""].parent or ""]
        )
        assert atom.name == f"execute {task}"


@pytest.mark.parametrize("given", [False, True], ids=["own", "given"])
def test_task_in_child_of_engine_sees_the_span_of_its_atom(
    memory: spans.Memory, given: bool
) -> None:
    with futures.ProcessPoolExecutor(1) as pool:
        executor = pool if given else "processes"
        engine = engines.load(flow(), engine="parallel", executor=executor, max_workers=1)
        with tracing.instrument(engine, memory.provider):
            engine.run()
        check(engine, memory.spans, {"plain": "execute plain", "async": "execute async"})


def test_task_in_child_of_worker_sees_the_span_of_its_request(
    memory: spans.Memory, place: str
) -> None:
    observer = _processing.WorkerTracing(memory.provider)
    with workers.worker_in_thread(place, joined_tasks, observers=[observer], processes_count=1):
        engine = engines.load(flow(), engine="worker-based", url=place)
        with tracing.instrument(engine, memory.provider):
            engine.run()
        check(engine, memory.spans, {"plain": "process t", "async": "process t"})


def test_encoding_error_is_the_same_with_and_without_tracing(memory: spans.Memory) -> None:
    told = []
    for traced in (True, False):
        made = sample_tasks.Add("a", inject={"x": threading.Lock(), "y": 1})
        engine = engines.load(
            linear_flow.Flow("f").add(made), engine="parallel", executor="processes"
        )
        listener = tracing.instrument(engine, memory.provider)
        if not traced:
            listener.uninstrument()
        with pytest.raises(exceptions.NotEncodable) as caught:
            engine.run()
        told.append((caught.value.path, caught.value.type_name))
    assert told[0] == told[1] and told[0][1] == "_thread.lock"


def test_child_process_drops_the_trace_context_after_each_call(memory: spans.Memory) -> None:
    """The next call in the child process belongs to an untraced engine."""
    with futures.ProcessPoolExecutor(1) as pool:
        for traced in (True, False):
            engine = engines.load(flow(), engine="parallel", executor=pool)
            listener = tracing.instrument(engine, memory.provider)
            if not traced:
                listener.uninstrument()
            engine.run()
            seen = [engine.storage.fetch(name)[3] is not None for name in ("plain", "async")]
            assert seen == [traced, traced]
