"""The page of schedules, and which buttons it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from wbengine.dashboard import http_errors
from wbengine.dashboard.app_state import AppState
from wbengine.persistence.backends import sql
from wbengine.schedules import Schedules

__all__ = ["ACTIONS", "SchedulePages", "schedules"]

#: What can be done to a schedule, and what is told afterwards.
ACTIONS: Final[Mapping[str, str]] = {
    "pause": "The schedule is paused.",
    "resume": "The schedule goes on with its next tick.",
    "run": "The schedule is fired once by the next wbengine serve that looks.",
}


class SchedulePages:
    """What is shown of schedules."""

    def __init__(self, app_state: AppState) -> None:
        self._state = app_state

    def routes(self) -> list[Route]:
        return [Route("/schedules", self.schedules)]

    def schedules(self, request: Request) -> Response:
        with http_errors.refused():
            kept = schedules(self._state)
            entries = [] if kept is None else kept.all()
        done = ACTIONS.get(request.query_params.get("done", ""))
        words: dict[str, Any] = {
            "here": "/schedules",
            "entries": entries,
            "mask": self._state.redactor.text,
            "told": {"kind": "good", "text": done} if done else None,
        }
        part = request.query_params.get("part")
        return self._state.render(request, "_schedules.html" if part else "schedules.html", words)


def schedules(app_state: AppState) -> Schedules | None:
    """The schedules in the store; None: it keeps none, for it is no database."""
    backend = app_state.store.backend
    return Schedules(backend) if isinstance(backend, sql.SQLBackend) else None
