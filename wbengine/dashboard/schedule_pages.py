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
from wbengine.schedules import Entry, Schedules

__all__ = ["ACTIONS", "SchedulePages", "schedules"]

#: So many are shown at a time, and at most.
LIMIT: Final = 100
MOST: Final = 1000
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
            entries, after = page(request, self._state)
        words: dict[str, Any] = {
            "here": "/schedules",
            "entries": entries,
            "next": after,
            "after": request.query_params.get("after", ""),
            "mask": self._state.redactor.text,
            "notice": ACTIONS.get(request.query_params.get("done", "")),
        }
        part = request.query_params.get("part")
        return self._state.render(request, "_schedules.html" if part else "schedules.html", words)


def page(request: Request, app_state: AppState) -> tuple[list[Entry], str | None]:
    """The schedules that an address asks for, by name, and what the next page is asked for with.

    :raises ValueError: the address is wrong.
    """
    limit = http_errors.limit(request, LIMIT, MOST)
    kept = schedules(app_state)
    return ([], None) if kept is None else kept.page(limit, request.query_params.get("after", ""))


def schedules(app_state: AppState) -> Schedules | None:
    """The schedules in the store; None: it keeps none, for it is no database."""
    backend = app_state.store.backend
    return Schedules(backend) if isinstance(backend, sql.SQLBackend) else None
