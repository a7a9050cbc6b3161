"""Number of telemetry function calls per task."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support import fresh

TASKS = 100

#: A separate process, because other tests may have enabled tracing in this one.
SCRIPT = """
import contextlib, json, sys
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry
from tests.support import sample_tasks
from wbengine import engines, running
from wbengine.patterns import unordered_flow
from wbengine.telemetry import metrics, tracing

def calls(observe):
    flow = unordered_flow.Flow("f").add(*(sample_tasks.Nothing(f"n{n}") for n in range(%d)))
    engine, found = engines.load(flow), {"all": 0, "telemetry": 0}
    def count(frame, event, arg):
        name = frame.f_code.co_filename
        if event == "call" and "/wbengine/" in name:
            found["all"] += 1
            found["telemetry"] += "/wbengine/telemetry/" in name
    with observe(engine):
        sys.setprofile(count)
        engine.run()
        sys.setprofile(None)
    return found

registry = CollectorRegistry()
bare = calls(contextlib.nullcontext)
assert (running.around, running.sending, running.header_hook) == (None, None, None)
print(json.dumps({
    "bare": bare,
    "metrics": calls(lambda engine: metrics.observe(engine, registry)),
    "traces": calls(
        lambda engine: tracing.instrument(engine, TracerProvider(), MeterProvider())
    ),
}))
"""


@pytest.fixture(scope="module")
def told() -> Any:
    return json.loads(fresh.run(SCRIPT % TASKS).stdout)


@pytest.mark.slow
def test_engine_without_listener_calls_no_telemetry(told: Any) -> None:
    assert told["bare"]["telemetry"] == 0


@pytest.mark.parametrize(("what", "most"), [("metrics", 7), ("traces", 16)])
def test_telemetry_calls_per_task_stay_within_limit(told: Any, what: str, most: int) -> None:
    ours = told[what]["telemetry"]
    assert most / 2 < ours / TASKS <= most
    # The remaining calls notify listeners.
    assert (told[what]["all"] - ours - told["bare"]["all"]) / TASKS <= 30
