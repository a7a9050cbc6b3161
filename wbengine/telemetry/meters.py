"""The metrics of this process, in a registry of prometheus-client."""

from __future__ import annotations

import platform
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import wbengine
from wbengine import states
from wbengine.engines.worker_based import dispatcher
from wbengine.telemetry import labels, names

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

__all__ = ["Meters", "client", "of"]

#: So many tasks, flows and topics are told apart; whatever else comes counts as `other`.
TASKS: Final = 200
FLOWS: Final = 100
TOPICS: Final = 50

#: How an execution and a reversion end: well, and not.
_ENDS: Final = {
    "execute": (states.SUCCESS, states.FAILURE),
    "revert": (states.REVERTED, states.REVERT_FAILURE),
}


def client() -> Any:
    """The package that metrics need.

    :raises ImportError: it is not installed; says how to.
    """
    try:
        import prometheus_client
    except ImportError:
        raise ImportError(
            "metrics need prometheus-client: pip install 'wbengine[metrics]'"
        ) from None
    return prometheus_client


class Meters:
    """Counts what is told to it.  Thread-safe; made by `of`, once for each registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        prometheus = client()
        kinds = {
            "counter": prometheus.Counter,
            "gauge": prometheus.Gauge,
            "histogram": prometheus.Histogram,
        }

        def make(name: str) -> Any:
            metric = names.METRICS[name]
            more: dict[str, Any] = {"buckets": metric.buckets} if metric.buckets else {}
            return kinds[metric.kind](name, metric.help, metric.labels, registry=registry, **more)

        self._task, self._flow = labels.Bounded(TASKS), labels.Bounded(FLOWS)
        self._topic = labels.Bounded(TOPICS)
        self._flows = make("wbengine_flows_total")
        self._running = make("wbengine_flows_running")
        self._flow_seconds = make("wbengine_flow_duration_seconds")
        self._tasks = make("wbengine_tasks_total")
        self._task_seconds = make("wbengine_task_duration_seconds")
        self._waits = make("wbengine_task_queue_wait_seconds")
        self._retries = make("wbengine_task_retries_total")
        registry.register(_Untrusted())
        build = make("wbengine_build_info")
        build.labels(wbengine.__version__, platform.python_version()).set(1)

    def flow_began(self, flow: str) -> None:
        self._running.labels(self._flow(flow)).inc()

    def flow_left(self, flow: str) -> None:
        """It runs no more, or nobody knows."""
        self._running.labels(self._flow(flow)).dec()

    def flow_ended(self, flow: str, state: str, seconds: float) -> None:
        flow = self._flow(flow)
        self._flows.labels(flow, state).inc()
        self._flow_seconds.labels(flow).observe(seconds)

    def task_ended(
        self, task: str, topic: str, action: str, failed: bool, attempt: int, seconds: float | None
    ) -> None:
        """An execution or a reversion ended; `seconds`: as far as it began."""
        task = self._task(task)
        self._tasks.labels(task, self._topic(topic), _ENDS[action][failed]).inc()
        if seconds is not None:
            self._task_seconds.labels(task, action).observe(max(0.0, seconds))
        if action == "execute" and attempt > 1:
            self._retries.labels(task).inc()

    def task_ignored(self, task: str) -> None:
        """Its deciders left it out."""
        self._tasks.labels(self._task(task), "", states.IGNORE).inc()

    def waited(self, topic: str, seconds: float) -> None:
        """A request had its turn."""
        self._waits.labels(self._topic(topic)).observe(max(0.0, seconds))


class _Untrusted:
    """Shows how many messages this process refused because they were not signed as they must be."""

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        from prometheus_client import core

        name = "wbengine_untrusted_messages_total"
        yield core.CounterMetricFamily(name, names.METRICS[name].help, dispatcher.untrusted())


_made: weakref.WeakKeyDictionary[CollectorRegistry, Meters] = weakref.WeakKeyDictionary()
_making: Final = threading.Lock()


def of(registry: CollectorRegistry | None = None) -> Meters:
    """The meters in a registry (that of prometheus-client, by default), made when first needed.

    :raises ImportError: prometheus-client is not installed.
    """
    found: CollectorRegistry = client().REGISTRY if registry is None else registry
    with _making:
        meters = _made.get(found)
        if meters is None:
            meters = _made[found] = Meters(found)
        return meters
