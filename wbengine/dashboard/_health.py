"""Liveness, readiness and metrics, for supervisors."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from wbengine import exceptions, operations
from wbengine.dashboard._app_state import AppState
from wbengine.fleet import _message_queues as queues
from wbengine.jobs._queues import queues_of
from wbengine.persistence._listing import Backlog
from wbengine.persistence._pauses import TaskPause
from wbengine.telemetry import metrics

__all__ = ["Probes"]


class Probes:
    """Handlers of the probes. `/livez` and `/readyz` need no token and show only a result."""

    def __init__(self, app_state: AppState) -> None:
        self._state = app_state

    def routes(self) -> list[Route]:
        return [
            Route("/livez", self.alive),
            Route("/readyz", self.ready),
            Route("/metrics", self.metrics),
        ]

    async def alive(self, request: Request) -> Response:
        """Return 200."""
        return JSONResponse({"schema": "wbengine/health/1", "ok": True})

    def ready(self, request: Request) -> Response:
        """Return 200, or 503 while the store cannot be read."""
        try:
            self._state.all_flows.check()
        except exceptions.StorageFailure:
            return JSONResponse({"schema": "wbengine/health/1", "ok": False}, 503)
        return JSONResponse({"schema": "wbengine/health/1", "ok": True})

    def metrics(self, request: Request) -> Response:
        """Return the metrics of the fleet, the store and this process, for Prometheus."""
        monitor = self._state.monitor
        workers, queue_sizes = (
            (monitor.workers, self._queues) if monitor.has_broker else (list, None)
        )
        try:
            text, kind = metrics.render(
                metrics.FleetCollector(
                    workers,
                    queue_sizes,
                    self._pauses,
                    self._waits_for_code,
                    self._backlog,
                    job_queues=lambda: queues_of(self._state.all_flows.backend),
                )
            )
        except ImportError as error:
            raise HTTPException(501, str(error)) from error
        return Response(text, headers={"content-type": kind})

    def _pauses(self) -> list[TaskPause]:
        return operations.paused_tasks(self._state.all_flows.backend)

    def _waits_for_code(self) -> Mapping[str, int]:
        return self._state.all_flows.read(lambda connection: connection.flows_waiting_for_code())

    def _backlog(self) -> Backlog:
        return self._state.all_flows.read(lambda connection: connection.backlog())

    def _queues(self) -> list[tuple[str, int]]:
        queue_views = self._state.monitor.queues()
        return [
            (queue.name, queue.messages) for queue in queue_views if queue.kind == queues.REQUESTS
        ]
