"""Providers of spans and measurements of a worker."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support import fresh
from tests.telemetry import spans


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a separate process, because a process has only one global provider."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return fresh.run(script, code=None, env={**kept, **environment})


def test_flush_does_not_wait_for_a_stuck_exporter() -> None:
    script = """
import logging, threading, time
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider, export
from wbengine.telemetry import _providers as providers

class Stuck(export.SpanExporter):
    def export(self, spans):
        threading.Event().wait()

made = TracerProvider(shutdown_on_exit=False)
made.add_span_processor(export.BatchSpanProcessor(Stuck()))
trace.set_tracer_provider(made)
logging.basicConfig()
providers.FLUSH_SECONDS = 0.2
found = providers.Providers()
trace.get_tracer("t").start_span("one").end()
began = time.monotonic()
found.flush()
assert time.monotonic() - began >= 0.2
"""
    ended = run(script)
    assert ended.returncode == 0, ended.stderr
    assert "were not exported within 0.2 s" in ended.stderr


def test_providers_of_the_environment_are_created_once() -> None:
    script = """
from opentelemetry import metrics, trace
from wbengine.telemetry import _providers as providers

found = providers.Providers()
current = trace.get_tracer_provider(), metrics.get_meter_provider()
assert current == providers.Providers()._providers
metrics.get_meter("m").create_counter("things").add(1)
trace.get_tracer("t").start_span("one").end()
found.flush()
"""
    ended = run(script, OTEL_TRACES_EXPORTER="console", OTEL_METRICS_EXPORTER="console")
    assert ended.returncode == 0, ended.stderr
    assert '"name": "one"' in ended.stdout and '"name": "things"' in ended.stdout
    assert not ended.stderr


def test_missing_exporter_is_named_in_the_error() -> None:
    script = "from wbengine.telemetry import _providers as providers; providers.Providers()"
    ended = run(script, OTEL_TRACES_EXPORTER="none", OTEL_METRICS_EXPORTER="otlp")
    (*_, line) = ended.stderr.splitlines()
    assert "$OTEL_METRICS_EXPORTER must name an installed exporter, got 'otlp_proto_grpc'" in line
    assert line.endswith("installed: console")


@pytest.mark.slow
def test_worker_uses_the_provider_of_a_task_module_without_exporter(tmp_path: Path) -> None:
    (tmp_path / "traced_tasks.py").write_text("""
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider, export
from tests.support.sample_tasks import Nothing as Nothing

provider = TracerProvider()
provider.add_span_processor(export.SimpleSpanProcessor(export.ConsoleSpanExporter()))
trace.set_tracer_provider(provider)
""")
    script = f"""
import sys
from wbengine import engines, testing
from wbengine.patterns import linear_flow
from wbengine.telemetry import _watching as watching

sys.path.append({str(tmp_path)!r})
watch = watching.Watch(None, None, None, traces="otlp")
url = "memory://traces"
with testing.worker_in_thread(url, "traced_tasks", observers=watch.observers) as worker:
    watch.begin(worker)
    import traced_tasks
    flow = linear_flow.Flow("f").add(traced_tasks.Nothing("n"))
    engines.run(flow, engine="worker-based", url=url, topics=["t"])
watch.end()
"""
    ended = run(script)
    assert ended.returncode == 0, ended.stderr
    assert spans.tree(spans.printed(ended.stdout)) == [["process t"]]


@pytest.mark.slow
def test_program_is_traced_if_the_environment_requests_it() -> None:
    script = """
import sys
from tests.support import sample_tasks
from wbengine import engines
from wbengine.patterns import linear_flow
from wbengine.telemetry import _programs as programs

for name in "ab":
    engine = engines.load(linear_flow.Flow(name).add(sample_tasks.Nothing("n")))
    with programs.traced(engine):
        engine.run()
print("loaded", [name for name in sys.modules if name.startswith("opentelemetry")][:1])
"""
    asked = run(script, OTEL_TRACES_EXPORTER="console")
    assert (asked.returncode, asked.stderr) == (0, "")
    found = spans.printed(asked.stdout)
    assert spans.tree(found) == [["flow a", ["execute n"]], ["flow b", ["execute n"]]]
    for environment in ({}, {"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "true"}):
        ended = run(script, **environment)
        assert ended.returncode == 0 and not spans.printed(ended.stdout), ended.stderr
    assert run(script).stdout == "loaded []\n"
