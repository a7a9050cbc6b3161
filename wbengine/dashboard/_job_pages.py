"""The page of the queues of submitted flows."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from wbengine.dashboard import _http_errors, _operation_forms
from wbengine.dashboard._app_state import AppState
from wbengine.jobs import _places
from wbengine.jobs._queues import JobKey, JobQueue, JobQueues
from wbengine.persistence._pauses import MAX_REASON_CHARACTERS
from wbengine.persistence.backends import _sql
from wbengine.views.redaction import redacted

__all__ = ["JobPages", "queues"]


class JobPages:
    """Handlers of the page. They block: Starlette calls them in threads."""

    def __init__(self, app_state: AppState) -> None:
        self._state = app_state

    def routes(self) -> list[Route]:
        return [Route("/jobs", self.jobs)]

    def jobs(self, request: Request) -> Response:
        queue = request.query_params.get("queue", "")
        with _http_errors.as_http_errors():
            found = queues(request, self._state)
            names = [each.name for each in found]
            context: dict[str, Any] = {
                "here": "/jobs",
                "queues": found,
                "queue": queue,
                "keys": _keys(request, self._state, queue) if queue in names else [],
                "max_reason": MAX_REASON_CHARACTERS,
                "name_pattern": f"[*]|{_places.QUEUE_PATTERN[1:-1]}",
                "notice": _operation_forms.notice(
                    _operation_forms.of_subject("jobs"), request.query_params.get("done", "")
                ),
            }
        part = request.query_params.get("part")
        return self._state.render(request, "_jobs.html" if part else "jobs.html", context)


def queues(request: Request, app_state: AppState) -> list[JobQueue]:
    """Return the queues of the board of the store, by name, with masked reasons.

    A visitor with access to some flows only sees none: their numbers concern all flows.
    """
    backend = app_state.store(request).backend
    if not isinstance(backend, _sql.SQLBackend):
        return []
    return redacted(JobQueues(backend).all(), app_state.redactor)


def _keys(request: Request, app_state: AppState, queue: str) -> list[JobKey]:
    return JobQueues(app_state.store(request).backend).keys(queue)
