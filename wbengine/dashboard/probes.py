"""For supervisors: whether the dashboard lives, whether it can be used, and its metrics."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from wbengine import exceptions
from wbengine.dashboard.app_state import AppState
from wbengine.telemetry import metrics
from wbengine.views import queues

__all__ = ["Probes"]


class Probes:
    """`/livez` and `/readyz` answer anybody, and tell no more than that."""

    def __init__(self, app_state: AppState) -> None:
        self._state = app_state

    def routes(self) -> list[Route]:
        return [
            Route("/livez", self.alive),
            Route("/readyz", self.ready),
            Route("/metrics", self.metrics),
        ]

    async def alive(self, request: Request) -> Response:
        """It answers, so it lives."""
        return JSONResponse({"schema": "wbengine/health/1", "ok": True})

    def ready(self, request: Request) -> Response:
        """503 while the store cannot be read."""
        try:
            self._state.store.check()
        except exceptions.StorageFailure:
            return JSONResponse({"schema": "wbengine/health/1", "ok": False}, 503)
        return JSONResponse({"schema": "wbengine/health/1", "ok": True})

    def metrics(self, request: Request) -> Response:
        """What Prometheus scrapes: the workers and queues of the fleet, and this process."""
        monitor = self._state.monitor
        looks = (monitor.workers, self._queues) if monitor.is_known else (list, None)
        try:
            text, kind = metrics.render(metrics.FleetCollector(*looks))
        except ImportError as error:
            raise HTTPException(501, str(error)) from error
        return Response(text, headers={"content-type": kind})

    def _queues(self) -> list[tuple[str, int]]:
        found = self._state.monitor.queues()
        return [(queue.name, queue.messages) for queue in found if queue.kind == queues.REQUESTS]
