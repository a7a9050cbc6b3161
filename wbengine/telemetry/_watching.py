"""Metrics, probes and traces of the worker command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from wbengine.telemetry import _probes, _serving

if TYPE_CHECKING:
    from wbengine.engines.worker_based import worker as workers
    from wbengine.engines.worker_based._worker_side import observers as worker_observers
    from wbengine.telemetry._processing import WorkerTracing
    from wbengine.telemetry._providers import Providers
    from wbengine.telemetry.metrics import WorkerObserver

__all__ = ["Watch"]


class Watch:
    """The requested telemetry of a worker. Modules are imported on request only.

    `observers` must be passed to the worker.

    :param metrics: the address of metrics.
    :param health: the address of probes.
    :param heartbeat: the file to touch.
    :param traces: the exporter of spans if neither the environment nor the module of a task sets
        one; None disables tracing.
    :raises ImportError: if a package is not installed.
    """

    def __init__(
        self,
        metrics: _serving.Address | None,
        health: _serving.Address | None,
        heartbeat: Path | None,
        traces: str | None = None,
    ) -> None:
        self._metrics, self._health, self._heartbeat = metrics, health, heartbeat
        self._counter: WorkerObserver | None = None
        self._servers: list[_serving.Server] = []
        self.observers: list[worker_observers.Observer] = []
        if metrics is not None:
            from wbengine.telemetry import metrics as counting

            self._counter = counting.WorkerObserver()
            self.observers.append(self._counter)
        self._traces = traces
        self._providers: Providers | None = None
        self._tracing: WorkerTracing | None = None
        if traces is not None:
            from wbengine.telemetry import _processing

            self._tracing = _processing.WorkerTracing()
            self.observers.append(self._tracing)

    def begin(self, worker: workers.Worker) -> None:
        """Set providers and start the servers. Call it before the worker runs.

        :raises ImportError: if an exporter is not installed.
        :raises OSError: if an address is not available, or the folder of the heartbeat file does
            not exist.
        """
        if self._traces is not None:
            from wbengine.telemetry import _providers

            # The worker has imported the tasks, and their modules may have set providers.
            self._providers = _providers.Providers(self._traces)
        served: dict[_serving.Address, dict[str, Any]] = {}
        if self._counter is not None and self._metrics is not None:
            self._counter.topics.update((queue, topic) for topic, queue in worker.queues.items())
            worker.observe_tasks(self._counter)
            served.setdefault(self._metrics, {})["/metrics"] = lambda: _metrics(worker)
        if self._health is not None:
            served.setdefault(self._health, {}).update(_probes.routes(worker))
        self._servers += _serving.start_servers(served)
        if self._tracing is not None:
            self._tracing.worker, self._tracing.system = worker.identity, worker.system
            worker.observe_tasks(self._tracing)
            worker.preload(self._tracing.IN_CHILDREN)
        if self._heartbeat is not None:
            worker.observe_loop(_probes.Pulse(self._heartbeat))

    def end(self) -> None:
        """Stop the servers, and export the remaining spans."""
        for server in self._servers:
            server.stop()
        if self._tracing is not None:
            self._tracing.close()
        if self._providers is not None:
            self._providers.flush()


def _metrics(worker: workers.Worker) -> _serving.Answer:
    from wbengine.telemetry import metrics

    return _serving.Answer(*metrics.render(metrics.FleetCollector(lambda: (worker.snapshot,))))
