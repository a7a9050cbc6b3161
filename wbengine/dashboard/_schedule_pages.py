"""The page of schedules."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from wbengine.dashboard import _backfill_pages, _http_errors, _operation_forms
from wbengine.dashboard._app_state import AppState
from wbengine.operations._operation import Operation
from wbengine.persistence.backends import _sql
from wbengine.schedules import Entry, Schedules

__all__ = ["SchedulePages", "actions", "schedules"]

DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1000


@functools.cache
def actions() -> Mapping[str, Operation]:
    """Return the operations on schedules that the page shows, by verb."""
    return _operation_forms.of_subject("schedule")


def of_entry(entry: Entry) -> list[Operation]:
    """Return the operations for the state of a schedule."""
    unavailable = "pause" if entry.paused else "resume"
    return [each for verb, each in actions().items() if verb != unavailable]


def notice(done: str) -> str | None:
    """Return the notice after an operation."""
    if done == _backfill_pages.operation().verb:
        return _backfill_pages.NOTICE
    return _operation_forms.notice(actions(), done)


class SchedulePages:
    """Handlers of the page. They block: Starlette calls them in threads."""

    def __init__(self, app_state: AppState) -> None:
        self._state = app_state

    def routes(self) -> list[Route]:
        return [Route("/schedules", self.schedules)]

    def schedules(self, request: Request) -> Response:
        with _http_errors.as_http_errors():
            entries, after = page(request, self._state)
        context: dict[str, Any] = {
            "here": "/schedules",
            "entries": entries,
            "next": after,
            "after": request.query_params.get("after", ""),
            "mask": self._state.redactor.text,
            "notice": notice(request.query_params.get("done", "")),
            "operations_of": of_entry,
            "backfill": _backfill_pages.operation(),
        }
        part = request.query_params.get("part")
        return self._state.render(request, "_schedules.html" if part else "schedules.html", context)


def page(request: Request, app_state: AppState) -> tuple[list[Entry], str | None]:
    """Return the requested schedules, sorted by name, and the cursor of the next page.

    :raises ValueError: if a parameter of the address is not valid.
    """
    limit = _http_errors.limit(request, DEFAULT_LIMIT, MAX_LIMIT)
    stored = schedules(request, app_state)
    return (
        ([], None) if stored is None else stored.page(limit, request.query_params.get("after", ""))
    )


def schedules(request: Request, app_state: AppState) -> Schedules | None:
    """Return the schedules of the store, or None if the store is not a database."""
    backend = app_state.store(request).backend
    return Schedules(backend) if isinstance(backend, _sql.SQLBackend) else None
