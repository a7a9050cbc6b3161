"""What the command of a worker does for those who watch it: serve metrics and probes, trace."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from wbengine.telemetry import probes, serving

if TYPE_CHECKING:
    from wbengine.engines.worker_based import worker as workers
    from wbengine.engines.worker_based.worker_side import observers as worker_observers
    from wbengine.telemetry.metrics import WorkerObserver
    from wbengine.telemetry.processing import WorkerTracing
    from wbengine.telemetry.providers import Providers

__all__ = ["Watch"]

LOG: Final = logging.getLogger(__name__)


class Watch:
    """All that is wanted of it; without anything, nothing is loaded, counted or served.

    `traces` is the exporter of spans where the environment names none; None: nothing is traced.
    `observers` are what the worker has to be made with.

    :raises ImportError: a package is missing; says which.
    """

    def __init__(
        self,
        metrics: serving.Address | None,
        health: serving.Address | None,
        heartbeat: Path | None,
        traces: str | None = None,
    ) -> None:
        self._metrics, self._health, self._heartbeat = metrics, health, heartbeat
        self._counter: WorkerObserver | None = None
        self._servers: list[serving.Server] = []
        self.observers: list[worker_observers.Observer] = []
        if metrics is not None:
            from wbengine.telemetry import metrics as counting

            self._counter = counting.WorkerObserver()
            self.observers.append(self._counter)
        self._providers: Providers | None = None
        self._tracing: WorkerTracing | None = None
        if traces is not None:
            from wbengine.telemetry import processing, providers

            self._providers = providers.Providers(traces)
            self._tracing = processing.WorkerTracing()
            self.observers.append(self._tracing)

    def begin(self, worker: workers.Worker) -> None:
        """Serve, before the worker runs.

        :raises OSError: nobody can listen there, or the file cannot be made; says which.
        """
        served: dict[serving.Address, dict[str, Any]] = {}
        if self._counter is not None and self._metrics is not None:
            self._counter.topics.update((queue, topic) for topic, queue in worker.queues.items())
            worker.observe_tasks(self._counter)
            served.setdefault(self._metrics, {})["/metrics"] = lambda: _metrics(worker)
        if self._health is not None:
            served.setdefault(self._health, {}).update(probes.routes(worker))
        for where, routes in served.items():
            try:
                server = serving.Server(where, routes)
            except OSError as error:
                raise OSError(f"cannot listen on {where}: {error.strerror or error}") from error
            self._servers.append(server)
            LOG.info("serving %s on http://%s", ", ".join(routes), server.address)
            server.start()
        if self._tracing is not None:
            self._tracing.worker, self._tracing.system = worker.identity, worker.system
            worker.observe_tasks(self._tracing)
            worker.preload(self._tracing.IN_CHILDREN)
        if self._heartbeat is not None:
            worker.tell_turns(probes.Pulse(self._heartbeat))

    def end(self) -> None:
        """Serve no more; what was traced goes out."""
        for server in self._servers:
            server.stop()
        if self._tracing is not None:
            self._tracing.close()
        if self._providers is not None:
            self._providers.flush()


def _metrics(worker: workers.Worker) -> serving.Answer:
    from wbengine.telemetry import metrics

    return serving.Answer(*metrics.render(metrics.FleetCollector(lambda: (worker.snapshot,))))
