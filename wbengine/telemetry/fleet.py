"""What a fleet looks like at the moment of a scrape, and what is shown to whoever scrapes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

from wbengine.engines.worker_based.messages import life
from wbengine.telemetry import labels, meters, names

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

__all__ = ["FleetCollector", "Worker", "render"]

LOG: Final = logging.getLogger(__name__)

#: So many workers and queues are shown one by one; the others together, as `other`.
MOST: Final = 1000

_CLOSED: Final = frozenset({life.SUSPENDED, life.DRAINING, life.STARTED})


class Worker(Protocol):
    """What a collector has to know of a worker; a `WorkerSnapshot` is one."""

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


class FleetCollector:
    """Shows workers and queues as they are when somebody asks: those that are gone are not shown.

    `workers` is called for each scrape (such as the `workers` of a `WorkerTaskExecutor`); `queues`
    likewise, and returns pairs of a queue and how many messages wait in it.  What they raise is
    logged, and the rest is shown.
    """

    def __init__(
        self,
        workers: Callable[[], Iterable[Worker]],
        queues: Callable[[], Iterable[tuple[str, int]]] | None = None,
    ) -> None:
        self._workers = workers
        self._queues = queues

    def describe(self) -> Iterable[Metric]:
        """Nothing: so it may be registered without being asked."""
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from self._of_workers(_called(self._workers))
        if self._queues is not None:
            depths: dict[str, float] = {}
            for name, count in _called(self._queues):
                _add(depths, name, count)
            yield _gauge("wbengine_queue_messages", {(name,): n for name, n in depths.items()})

    def _of_workers(self, workers: Iterable[Worker]) -> Iterator[Metric]:
        slots: dict[tuple[str, ...], float] = {}
        seen: dict[tuple[str, ...], float] = {}
        known = labels.Bounded(MOST)
        for worker in workers:
            if worker.state == life.DEAD:
                continue
            identity = worker.identity
            name = known(labels.of_worker(identity) if identity else ",".join(worker.topics))
            left = max(0, worker.slots - worker.running)
            closed = worker.state in _CLOSED
            for state, count in (
                ("busy", worker.running),
                ("free", 0 if closed else left),
                ("closed", left if closed else 0),
            ):
                slots[name, state] = slots.get((name, state), 0) + count
            seen[(name,)] = max(seen.get((name,), 0.0), worker.heard)
        yield _gauge("wbengine_worker_slots", slots)
        yield _gauge("wbengine_worker_last_seen_timestamp_seconds", seen)


def _called(ask: Callable[[], Iterable[Any]]) -> list[Any]:
    try:
        return list(ask())
    except Exception as error:
        LOG.warning("a part of the metrics is not known now: %s", error)
        return []


def _add(counts: dict[str, float], name: str, count: float) -> None:
    name = labels.text(name)
    if name not in counts and len(counts) >= MOST:
        name = labels.OTHER
    counts[name] = counts.get(name, 0) + count


def _gauge(name: str, values: dict[tuple[str, ...], float]) -> Any:
    from prometheus_client import core

    metric = names.METRICS[name]
    family = core.GaugeMetricFamily(name, metric.help, labels=metric.labels)
    for found, value in values.items():
        family.add_metric(found, value)
    return family


class _Joint:
    """A registry, and collectors beside it, as one."""

    def __init__(self, parts: Iterable[Any]) -> None:
        self._parts = tuple(parts)

    def collect(self) -> Iterable[Metric]:
        found: dict[str, Any] = {}
        for part in self._parts:
            for metric in part.collect():
                known = found.setdefault(metric.name, metric)
                if known is not metric:
                    known.samples.extend(metric.samples)
        return found.values()


def render(
    *collectors: FleetCollector, registry: CollectorRegistry | None = None
) -> tuple[bytes, str]:
    """What a scrape of this process is answered, with its content type: all that is in `registry`
    (by default, that of prometheus-client), and what `collectors` show.

    :raises ImportError: prometheus-client is not installed.
    """
    prometheus = meters.client()
    meters.of(registry)  # also where nothing was counted so far
    found = prometheus.REGISTRY if registry is None else registry
    text: bytes = prometheus.generate_latest(_Joint((found, *collectors)))
    return text, prometheus.CONTENT_TYPE_LATEST
