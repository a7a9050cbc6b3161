"""Metrics of the fleet at the time of a scrape, and the response to a scrape."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from wbengine.engines.worker_based._messages import worker_life
from wbengine.persistence._listing import Backlog
from wbengine.persistence._pauses import TaskPause
from wbengine.telemetry import _labels, _meters, _metric_definitions

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

__all__ = ["FleetCollector", "Worker", "render"]

LOG: Final = logging.getLogger(__name__)

#: Maximum number of workers, queues and pauses with a separate series; others share `other`.
MAX_SERIES: Final = 1000

_CLOSED_STATES: Final = frozenset(
    {worker_life.SUSPENDED, worker_life.DRAINING, worker_life.STARTED}
)


class Worker(Protocol):
    """The values of a worker that a collector reads; a `WorkerSnapshot` has them."""

    @property
    def identity(self) -> str | None: ...
    @property
    def topics(self) -> tuple[str, ...]: ...
    @property
    def slots(self) -> int: ...
    @property
    def running(self) -> int: ...
    @property
    def heard(self) -> float: ...
    @property
    def state(self) -> str: ...


class JobQueue(Protocol):
    """The values of a queue of flows that a collector reads."""

    @property
    def name(self) -> str: ...
    @property
    def waiting(self) -> int: ...
    @property
    def delayed(self) -> int: ...
    @property
    def running(self) -> int: ...
    @property
    def oldest(self) -> float | None: ...
    @property
    def is_served(self) -> bool: ...


class Retention(Protocol):
    """The values of a retention service that a collector reads."""

    @property
    def deleted(self) -> int: ...
    @property
    def latest_run(self) -> float | None: ...


class Bulks(Protocol):
    """The values of a service of operations on many flows that a collector reads."""

    @property
    def flows(self) -> Mapping[tuple[str, str], int]: ...
    @property
    def errors(self) -> Mapping[str, int]: ...
    def running(self) -> Mapping[str, int]: ...


class Notifications(Protocol):
    """The values of a service of notifications that a collector reads."""

    @property
    def name(self) -> str: ...
    @property
    def messages(self) -> Mapping[str, int]: ...
    @property
    def events(self) -> Mapping[tuple[str, str], int]: ...


class FleetCollector:
    """Collector of the present workers, queues and pauses. Lost workers have no series.

    Exceptions of the functions are logged, and the other metrics are shown.

    :param workers: called at each scrape, such as `WorkerTaskExecutor.workers`.
    :param queues: called at each scrape; returns pairs of a queue and the number of its messages.
    :param pauses: called at each scrape; returns the pauses of task types in the store.
    :param waits_for_code: called at each scrape; returns the number of flows that wait for code
        that no conductor has, by this code.
    :param backlog: called at each scrape; returns the flows of the store that wait for an engine,
        such as `Connection.backlog`.
    :param job_queues: called at each scrape; returns the queues of flows.
    :param oldest_flow: called at each scrape; returns the creation time of the oldest flow in Unix
        seconds, or None.
    :param retention: the service that deletes ended flows.
    :param bulks: the service that carries out operations on many flows.
    :param notifications: the services that send notifications.
    """

    def __init__(
        self,
        workers: Callable[[], Iterable[Worker]] | None = None,
        queues: Callable[[], Iterable[tuple[str, int]]] | None = None,
        pauses: Callable[[], Iterable[TaskPause]] | None = None,
        waits_for_code: Callable[[], Mapping[str, int]] | None = None,
        backlog: Callable[[], Backlog] | None = None,
        oldest_flow: Callable[[], float | None] | None = None,
        retention: Retention | None = None,
        bulks: Bulks | None = None,
        notifications: Iterable[Notifications] = (),
        job_queues: Callable[[], Iterable[JobQueue]] | None = None,
    ) -> None:
        self._workers = workers
        self._queues = queues
        self._pauses = pauses
        self._waits_for_code = waits_for_code
        self._backlog = backlog
        self._oldest_flow = oldest_flow
        self._retention = retention
        self._bulks = bulks
        self._notifications = tuple(notifications)
        self._job_queues = job_queues

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that a registration does not query the fleet."""
        return ()

    def collect(self) -> Iterator[Metric]:
        if self._workers is not None:
            yield from self._worker_metrics(_read_or_warn(self._workers))
        if self._queues is not None:
            depths: dict[str, float] = {}
            for name, count in _read_or_warn(self._queues):
                _add_count(depths, name, count)
            yield _gauge("wbengine_queue_messages", {(name,): n for name, n in depths.items()})
        if self._pauses is not None:
            bounded = _labels.Bounded(MAX_SERIES)
            counts = Counter((bounded(pause.pattern),) for pause in _read_or_warn(self._pauses))
            yield _gauge("wbengine_task_pauses", counts)
        if self._waits_for_code is not None:
            read, flows = self._waits_for_code, dict[str, float]()
            for code, count in _read_or_warn(lambda: read().items()):
                _add_count(flows, code, count)
            yield _gauge(
                "wbengine_flows_waiting_for_code", {(code,): n for code, n in flows.items()}
            )
        if self._backlog is not None:
            yield from _backlog_metrics(self._backlog)
        if self._job_queues is not None:
            yield from _job_queue_metrics(_read_or_warn(self._job_queues))
        if self._oldest_flow is not None:
            yield _time("wbengine_oldest_flow_timestamp_seconds", self._oldest_flow)
        if (retention := self._retention) is not None:
            name = "wbengine_retention_last_run_timestamp_seconds"
            yield _time(name, lambda: retention.latest_run)
            yield _counter("wbengine_flows_deleted_total", {(): retention.deleted})
        if self._bulks is not None:
            yield from _bulk_metrics(self._bulks)
        if self._notifications:
            yield from _notification_metrics(self._notifications)

    def _worker_metrics(self, workers: Iterable[Worker]) -> Iterator[Metric]:
        slots: dict[tuple[str, ...], float] = {}
        last_seen: dict[tuple[str, ...], float] = {}
        bounded = _labels.Bounded(MAX_SERIES)
        for worker in workers:
            if worker.state == worker_life.DEAD:
                continue
            identity = worker.identity
            name = bounded(_labels.of_worker(identity) if identity else ",".join(worker.topics))
            idle = max(0, worker.slots - worker.running)
            closed = worker.state in _CLOSED_STATES
            for state, count in (
                ("busy", worker.running),
                ("free", 0 if closed else idle),
                ("closed", idle if closed else 0),
            ):
                slots[name, state] = slots.get((name, state), 0) + count
            last_seen[(name,)] = max(last_seen.get((name,), 0.0), worker.heard)
        yield _gauge("wbengine_worker_slots", slots)
        yield _gauge("wbengine_worker_last_seen_timestamp_seconds", last_seen)


def _backlog_metrics(read: Callable[[], Backlog]) -> Iterator[Metric]:
    for backlog in _read_or_warn(lambda: [read()]):
        oldest = {} if backlog.oldest is None else {(): backlog.oldest}
        yield _gauge("wbengine_flows_pending", {(): backlog.flows})
        yield _gauge("wbengine_oldest_pending_flow_timestamp_seconds", oldest)


def _job_queue_metrics(queues: Iterable[JobQueue]) -> Iterator[Metric]:
    """Yield the metrics of queues of flows. Queues with the label `other` are added up."""
    flows: dict[tuple[str, str], float] = {}
    oldest: dict[tuple[str], float] = {}
    served: dict[tuple[str], float] = {}
    bounded = _labels.Bounded(MAX_SERIES)
    for queue in queues:
        name = bounded(queue.name)
        for state in ("waiting", "delayed", "running"):
            flows[name, state] = flows.get((name, state), 0) + getattr(queue, state)
        if queue.oldest is not None:
            oldest[(name,)] = min(oldest.get((name,), queue.oldest), queue.oldest)
        served[(name,)] = min(served.get((name,), 1), int(queue.is_served))
    yield _gauge("wbengine_job_queue_flows", flows)
    yield _gauge("wbengine_job_queue_oldest_timestamp_seconds", oldest)
    yield _gauge("wbengine_job_queue_served", served)


def _bulk_metrics(bulks: Bulks) -> Iterator[Metric]:
    running = _read_or_warn(lambda: bulks.running().items())
    yield _gauge("wbengine_bulks_running", {(_labels.text(name),): n for name, n in running})
    yield _counter("wbengine_bulk_flows_total", dict(bulks.flows))
    errors = {(operation,): count for operation, count in dict(bulks.errors).items()}
    yield _counter("wbengine_bulk_errors_total", errors)


def _notification_metrics(services: Iterable[Notifications]) -> Iterator[Metric]:
    messages: dict[tuple[str, ...], float] = {}
    events: dict[tuple[str, ...], float] = {}
    for service in services:
        name = _labels.text(service.name)
        messages |= {(name, result): n for result, n in dict(service.messages).items()}
        events |= {(name, *key): n for key, n in dict(service.events).items()}
    yield _counter("wbengine_notifications_total", messages)
    yield _counter("wbengine_notification_events_total", events)


def _time(name: str, read: Callable[[], float | None]) -> Any:
    times = _read_or_warn(lambda: [read()])
    return _gauge(name, {} if times in ([], [None]) else {(): times[0]})


def _read_or_warn(read: Callable[[], Iterable[Any]]) -> list[Any]:
    try:
        return list(read())
    except Exception as error:
        LOG.warning("cannot determine a part of the metrics: %s", error)
        return []


def _add_count(counts: dict[str, float], name: str, count: float) -> None:
    name = _labels.text(name)
    if name not in counts and len(counts) >= MAX_SERIES:
        name = _labels.OTHER
    counts[name] = counts.get(name, 0) + count


def _gauge(name: str, values: Mapping[Any, float]) -> Any:
    from prometheus_client import core

    metric = _metric_definitions.METRICS[name]
    family = core.GaugeMetricFamily(name, metric.help, labels=metric.labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family


def _counter(name: str, values: Mapping[Any, float]) -> Any:
    from prometheus_client import core

    metric = _metric_definitions.METRICS[name]
    family = core.CounterMetricFamily(name, metric.help, labels=metric.labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family


class _CombinedRegistry:
    """A registry and further collectors, with one family for each metric name."""

    def __init__(self, parts: Iterable[Any]) -> None:
        self._parts = tuple(parts)

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Any] = {}
        for part in self._parts:
            for metric in part.collect():
                family = families.setdefault(metric.name, metric)
                if family is not metric:
                    family.samples.extend(metric.samples)
        return families.values()


def render(
    *collectors: FleetCollector, registry: CollectorRegistry | None = None
) -> tuple[bytes, str]:
    """Return the response to a scrape, and its content type.

    :param collectors: further collectors, which are not in the registry.
    :param registry: the registry (default: prometheus-client's).
    :raises ImportError: if prometheus-client is not installed.
    """
    prometheus = _meters.client()
    _meters.of(registry)  # Registers the metrics even if nothing was counted.
    base_registry = prometheus.REGISTRY if registry is None else registry
    text: bytes = prometheus.generate_latest(_CombinedRegistry((base_registry, *collectors)))
    return text, prometheus.CONTENT_TYPE_LATEST
