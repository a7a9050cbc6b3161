"""Bodies that run in other processes see the span that they belong to."""

from __future__ import annotations

import os
import threading
import uuid
from concurrent import futures
from typing import Any

import pytest

from tests.support import sample_tasks, workers
from tests.telemetry import joined_tasks, spans
from wbengine import engines, exceptions
from wbengine.patterns import linear_flow
from wbengine.telemetry import processing, tracing


@pytest.fixture
def memory() -> spans.Memory:
    return spans.Memory()


def flow() -> Any:
    return linear_flow.Flow("f").add(
        joined_tasks.Tells("plain", provides="plain"),
        joined_tasks.TellsLater("async", provides="async"),
    )


def check(engine: Any, found: list[spans.Spent], names: dict[str, str]) -> None:
    """What each task saw was the span with that name below its atom."""
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
def test_the_children_of_an_engine(memory: spans.Memory, given: bool) -> None:
    with futures.ProcessPoolExecutor(1) as pool:
        executor = pool if given else "processes"
        engine = engines.load(flow(), engine="parallel", executor=executor, max_workers=1)
        with tracing.instrument(engine, memory.provider):
            engine.run()
        check(engine, memory.spans, {"plain": "execute plain", "async": "execute async"})


def test_the_children_of_a_worker(memory: spans.Memory) -> None:
    place = f"memory://{uuid.uuid4().hex}"
    observer = processing.WorkerTracing(memory.provider)
    with workers.worker_in_thread(place, joined_tasks, observers=[observer], processes_count=1):
        engine = engines.load(flow(), engine="worker-based", url=place)
        with tracing.instrument(engine, memory.provider):
            engine.run()
        check(engine, memory.spans, {"plain": "process t", "async": "process t"})


def test_what_cannot_go_into_a_child_is_named_as_ever(memory: spans.Memory) -> None:
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


def test_a_child_forgets_whom_it_belonged_to(memory: spans.Memory) -> None:
    """The next call in it is of an engine that nobody traces."""
    with futures.ProcessPoolExecutor(1) as pool:
        for traced in (True, False):
            engine = engines.load(flow(), engine="parallel", executor=pool)
            listener = tracing.instrument(engine, memory.provider)
            if not traced:
                listener.uninstrument()
            engine.run()
            seen = [engine.storage.fetch(name)[3] is not None for name in ("plain", "async")]
            assert seen == [traced, traced]
