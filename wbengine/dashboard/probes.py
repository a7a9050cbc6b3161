"""For supervisors: whether the dashboard lives, whether it can be used, and its metrics."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from wbengine import exceptions
from wbengine.dashboard.desk import Desk
from wbengine.telemetry import metrics
from wbengine.views import queues

__all__ = ["Probes"]


class Probes:
    """`/livez` and `/readyz` answer anybody, and tell no more than that."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

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
            self._desk.store.check()
        except exceptions.StorageFailure:
            return JSONResponse({"schema": "wbengine/health/1", "ok": False}, 503)
        return JSONResponse({"schema": "wbengine/health/1", "ok": True})

    def metrics(self, request: Request) -> Response:
        """What Prometheus scrapes: the workers and queues of the fleet, and this process."""
        crew = self._desk.crew
        depths = self._queues if crew.is_known else None
        try:
            text, kind = metrics.render(metrics.FleetCollector(crew.seen, depths))
        except ImportError as error:
            raise HTTPException(501, str(error)) from error
        return Response(text, headers={"content-type": kind})

    def _queues(self) -> list[tuple[str, int]]:
        found = self._desk.crew.queues()
        return [(queue.name, queue.messages) for queue in found if queue.kind == queues.REQUESTS]
