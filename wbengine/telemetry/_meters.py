"""Metrics of this process, in a registry of prometheus-client."""

from __future__ import annotations

import platform
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import wbengine
from wbengine import states
from wbengine._imports import installing
from wbengine.engines.worker_based import dispatcher
from wbengine.telemetry import _labels, _metric_definitions

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

__all__ = ["Meters", "RunningEngines", "client", "of"]

#: Maximum number of values of each label; further ones are counted as `other`.
MAX_TASKS: Final = 200
MAX_FLOWS: Final = 100
MAX_TOPICS: Final = 50

#: Final states of an execution and a reversion: success, failure.
_FINAL_STATES: Final = {
    "execute": (states.SUCCESS, states.FAILURE),
    "revert": (states.REVERTED, states.REVERT_FAILURE),
}


def client() -> Any:
    """Return the module `prometheus_client`.

    :raises ImportError: if it is not installed. The message contains the command for it.
    """
    try:
        import prometheus_client
    except ImportError:
        raise ImportError(installing.needs("metrics", "prometheus-client", "metrics")) from None
    return prometheus_client


class Meters:
    """The metrics of a registry. Thread-safe. Use `of`, which creates one for each registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        prometheus = client()
        kinds = {
            "counter": prometheus.Counter,
            "gauge": prometheus.Gauge,
            "histogram": prometheus.Histogram,
        }

        def create(name: str) -> Any:
            metric = _metric_definitions.METRICS[name]
            options: dict[str, Any] = {"buckets": metric.buckets} if metric.buckets else {}
            return kinds[metric.kind](
                name, metric.help, metric.labels, registry=registry, **options
            )

        self._task, self._flow = _labels.Bounded(MAX_TASKS), _labels.Bounded(MAX_FLOWS)
        self._topic = _labels.Bounded(MAX_TOPICS)
        self._flows = create("wbengine_flows_total")
        self._undone = create("wbengine_flows_undone_total")
        self._running = create("wbengine_flows_running")
        self._flow_seconds = create("wbengine_flow_duration_seconds")
        self._tasks = create("wbengine_tasks_total")
        self._task_seconds = create("wbengine_task_duration_seconds")
        self._wait_seconds = create("wbengine_task_queue_wait_seconds")
        self._retries = create("wbengine_task_retries_total")
        self._resent = create("wbengine_tasks_resent_total")
        registry.register(_Untrusted())
        self.engines = RunningEngines(self._task)
        registry.register(self.engines)
        build = create("wbengine_build_info")
        build.labels(wbengine.__version__, platform.python_version()).set(1)

    def flow_began(self, flow: str) -> None:
        self._running.labels(self._flow(flow)).inc()

    def flow_left(self, flow: str) -> None:
        """Stop counting the flow as running."""
        self._running.labels(self._flow(flow)).dec()

    def flow_ended(self, flow: str, state: str, seconds: float) -> None:
        flow = self._flow(flow)
        self._flows.labels(flow, state).inc()
        self._flow_seconds.labels(flow).observe(seconds)

    def flow_undone(self, flow: str, outcome: str) -> None:
        self._undone.labels(self._flow(flow), outcome).inc()

    def task_ended(
        self, task: str, topic: str, action: str, failed: bool, attempt: int, seconds: float | None
    ) -> None:
        """Count an execution or reversion; `seconds` is None if it did not start."""
        task = self._task(task)
        self._tasks.labels(task, self._topic(topic), _FINAL_STATES[action][failed]).inc()
        if seconds is not None:
            self._task_seconds.labels(task, action).observe(max(0.0, seconds))
        if action == "execute" and attempt > 1:
            self._retries.labels(task).inc()

    def task_ignored(self, task: str) -> None:
        """Count a task that a decider skipped."""
        self._tasks.labels(self._task(task), "", states.IGNORE).inc()

    def task_resent(self, task: str) -> None:
        """Count a task that was resent or began again, so that it may have run twice."""
        self._resent.labels(self._task(task)).inc()

    def waited(self, topic: str, seconds: float) -> None:
        """Record the time that a request waited for its worker."""
        self._wait_seconds.labels(self._topic(topic)).observe(max(0.0, seconds))


class _Untrusted:
    """Collector of the number of messages that lack a valid signature."""

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        from prometheus_client import core

        name = "wbengine_untrusted_messages_total"
        yield core.CounterMetricFamily(
            name, _metric_definitions.METRICS[name].help, dispatcher.untrusted()
        )


class RunningEngines:
    """Collector of the numbers of tasks that wait in engines that are not deleted."""

    def __init__(self, label: _labels.Bounded) -> None:
        self._label = label
        self._lock = threading.Lock()
        self._engines: weakref.WeakSet[Any] = weakref.WeakSet()

    def add(self, engine: Any) -> None:
        with self._lock:
            self._engines.add(engine)

    def discard(self, engine: Any) -> None:
        with self._lock:
            self._engines.discard(engine)

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            engines = list(self._engines)
        # Several engines may share an executor.
        executors = {id(engine.executor): engine.executor for engine in engines}.values()
        unserved = [each.unserved() for each in executors if hasattr(each, "unserved")]
        yield self._gauge("wbengine_tasks_paused", [each.paused_tasks() for each in engines])
        yield self._gauge("wbengine_requests_unserved", unserved)

    def _gauge(self, name: str, counts_by_task: Iterable[Mapping[str, int]]) -> Metric:
        from prometheus_client import core

        totals: Counter[str] = Counter()
        for counts in counts_by_task:
            for task, count in counts.items():
                totals[self._label(task)] += count
        family = core.GaugeMetricFamily(
            name, _metric_definitions.METRICS[name].help, labels=["task"]
        )
        for task, count in totals.items():
            family.add_metric([task], count)
        return family


_meters_by_registry: weakref.WeakKeyDictionary[CollectorRegistry, Meters] = (
    weakref.WeakKeyDictionary()
)
_lock: Final = threading.Lock()


def of(registry: CollectorRegistry | None = None) -> Meters:
    """Return the metrics of a registry (default: prometheus-client's).

    :raises ImportError: if prometheus-client is not installed.
    """
    key: CollectorRegistry = client().REGISTRY if registry is None else registry
    with _lock:
        meters = _meters_by_registry.get(key)
        if meters is None:
            meters = _meters_by_registry[key] = Meters(key)
        return meters
