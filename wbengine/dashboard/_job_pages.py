"""The page of the queues of submitted flows."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from wbengine.dashboard import _http_errors, _operation_forms, _visitors
from wbengine.dashboard._app_state import AppState
from wbengine.jobs import _places
from wbengine.jobs._queues import JobKey, JobQueue, JobQueues, queues_of
from wbengine.persistence._pauses import MAX_REASON_CHARACTERS
from wbengine.persistence._restricted import RestrictedBackend
from wbengine.views.redaction import redacted

__all__ = ["JobPages", "keys", "queues"]


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
                "keys": keys(self._state, queue) if queue in names else [],
                "max_reason": MAX_REASON_CHARACTERS,
                "name_pattern": f"[*]|{_places.QUEUE_PATTERN[1:-1]}",
                "notice": _operation_forms.notice(
                    _operation_forms.of_subject("jobs"), request.query_params.get("done", "")
                ),
            }
        if _visitors.restriction_of(request):
            context["allow_actions"] = False  # A pause concerns all flows.
        part = request.query_params.get("part")
        return self._state.render(request, "_jobs.html" if part else "jobs.html", context)


def queues(request: Request, app_state: AppState) -> list[JobQueue]:
    """Return the queues of the board of the store, by name, with masked reasons.

    A visitor with access to flows of some queues sees only these queues. One with tags sees none,
    because the numbers concern all flows.
    """
    shown, restricted = queues_of(app_state.all_flows.backend), app_state.store(request).backend
    if isinstance(restricted, RestrictedBackend):
        names = () if restricted.tags else restricted.queues
        shown = [queue for queue in shown if queue.name in names]
    return redacted(shown, app_state.redactor)


def keys(app_state: AppState, queue: str, limit: int = 100) -> list[JobKey]:
    """Return the fair keys of a queue, with masked secrets."""
    return redacted(JobQueues(app_state.all_flows.backend).keys(queue, limit), app_state.redactor)
