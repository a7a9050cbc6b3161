"""OpenTelemetry measurements of messages between engines and workers."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import celery
import pytest

from tests.support import fresh, sample_tasks, workers
from tests.telemetry import metric_values, spans
from wbengine import engines
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.telemetry import _attributes, _metric_definitions, _processing, tracing

#: A task that appends a line to a file.
NOTE = "tests.celery.tasks.note"

DURATION, SENT = _metric_definitions.OPERATION_DURATION, _metric_definitions.SENT_MESSAGES
CONSUMED, PROCESSED = _metric_definitions.CONSUMED_MESSAGES, _metric_definitions.PROCESS_DURATION


def key(name: str, operation: str, **more: str) -> metric_values.Key:
    names = {"messaging.system": "memory", "messaging.destination.name": "t", **more}
    names["messaging.operation.name"] = operation
    return name, tuple(sorted(names.items()))


@contextlib.contextmanager
def observed(place: str, count: int, **options: Any) -> Any:
    """Run workers, each with its own meter provider."""
    with contextlib.ExitStack() as fleet:
        observed_workers = []
        for _ in range(count):
            values, memory = metric_values.MetricValues(), spans.Memory()
            observer = _processing.WorkerTracing(memory.provider, values.provider)
            running_worker = workers.worker_in_thread(
                place, sample_tasks, observers=[observer], **options
            )
            worker = fleet.enter_context(running_worker)
            observer.worker, observer.system = worker.identity, worker.system
            observed_workers.append((values, memory))
        yield observed_workers


def test_messages_between_engine_and_two_workers_are_measured(tmp_path: Path, place: str) -> None:
    flow = linear_flow.Flow("f").add(
        unordered_flow.Flow("all").add(
            *(sample_tasks.Nothing(f"n{n}") for n in range(6)), *sample_tasks.meeting(tmp_path)
        ),
        sample_tasks.Fail("bad"),
    )
    sent, memory = metric_values.MetricValues(), spans.Memory()
    with observed(place, 2, threads_count=1) as fleet:
        engine = engines.load(flow, engine="worker-based", url=place)
        assert engine.executor.wait_for_workers(2, 60) == 0
        with (
            tracing.instrument(engine, memory.provider, sent.provider),
            pytest.raises(ValueError),
        ):
            engine.run()
    of_send = {_attributes.OPERATION_TYPE: "send"}
    assert sent.counts == {key(SENT, "send"): 9, key(DURATION, "send", **of_send): 9}
    each = [values.counts for values, _ in fleet]
    assert all(one[key(CONSUMED, "receive")] > 0 for one in each)
    assert sum(one[key(CONSUMED, "receive")] for one in each) == 9
    well, badly = (
        key(PROCESSED, "process"),
        key(PROCESSED, "process", **{"error.type": "ValueError"}),
    )
    assert sum(one[well] for one in each) == 8
    assert sum(one.get(badly, 0) for one in each) == 1
    assert {metric for one in each for metric in one} == {key(CONSUMED, "receive"), well, badly}
    for values, own in ((sent, memory), *fleet):
        check_instruments(values)
        check_times(values, own)


def check_instruments(values: metric_values.MetricValues) -> None:
    """Check names, units and attributes against the conventions; attributes contain no ids."""
    for metric in values.metrics:
        known = _metric_definitions.MESSAGING[metric.name]
        assert metric.unit == ("s" if known.kind == "histogram" else "{message}")
        assert metric.description == known.help
        for point in metric.data.data_points:
            assert set(point.attributes) <= set(known.labels)
            assert not re.search("[0-9a-f]{8}", str(dict(point.attributes)))
            if known.kind == "histogram":
                assert tuple(point.explicit_bounds) == known.buckets == _metric_definitions.ADVISED


def check_times(values: metric_values.MetricValues, own: spans.Memory) -> None:
    """Check that measured durations equal those in the spans."""
    point: Any
    for (name, pairs), point in values.points.items():
        if not hasattr(point, "sum"):
            continue
        operation, error = (dict(pairs).get(k) for k in (_attributes.OPERATION, _attributes.ERROR))
        spent = [
            span.lasted
            for span in own.spans
            if span.attributes.get(_attributes.OPERATION) == operation
            and span.attributes.get(_attributes.ERROR) == error
        ]
        assert len(spent) == point.count, name
        assert point.sum == pytest.approx(sum(spent), abs=1e-5 * len(spent))


def test_tasks_of_celery_clients_are_measured(tmp_path: Path, redis_url: Any) -> None:
    arguments = ["--celery-queue", "celery", "--celery-broker", str(redis_url), "--threads", "1"]
    arguments += ["--celery-result-backend", str(redis_url), "--traces"]
    arguments += ["--tasks", "tests.celery.tasks"]
    environment = {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "console"}
    url = str(redis_url)
    client = celery.Celery("client", broker=url, backend=url, set_as_current=False)
    with workers.workers(tmp_path, *arguments, environment=environment, warnings="default") as (
        worker,
    ):
        sent = [client.send_task(NOTE, (str(tmp_path / "notes"), "a"))]
        sent.append(client.send_task(NOTE))  # arguments are missing
        for each in sent:
            each.get(timeout=90, propagate=False)
        assert [each.state for each in sent] == ["SUCCESS", "FAILURE"]
        assert worker.stop() == 0
        text = worker.text
    for name in (CONSUMED, PROCESSED):
        assert f'"name": "{name}"' in text
    assert '"messaging.system": "redis"' in text and '"error.type": "TypeError"' in text


def test_run_instrumented_without_sdk_imports_no_prometheus_client() -> None:
    """The API alone measures nothing and requires no other package."""
    script = """
import sys
sys.modules["opentelemetry.sdk"] = None
from tests.support import sample_tasks
from wbengine import engines
from wbengine.patterns import linear_flow
from wbengine.telemetry import tracing
engine = engines.load(linear_flow.Flow("f").add(sample_tasks.Nothing("n")))
with tracing.instrument(engine):
    engine.run()
assert not [name for name in sys.modules if name.startswith("prometheus_client")]
"""
    fresh.run(script)
