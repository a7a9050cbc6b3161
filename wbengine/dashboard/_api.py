"""Read-only JSON API with the data of the pages. Each response names its schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from wbengine.dashboard import (
    _fleet_pages,
    _http_errors,
    _listings,
    _pause_pages,
    _rendering,
    _schedule_pages,
)
from wbengine.dashboard._app_state import AppState
from wbengine.views import _event_history

__all__ = ["Api"]

_MAX_LINES: Final = 5000


class Api:
    """Handlers of the API. They block, so Starlette calls them in threads."""

    def __init__(self, app_state: AppState) -> None:
        self._state = app_state

    def routes(self) -> list[Route]:
        flow = "flows/{uuid:uuid}"
        return [
            _route("flows", "flows", self.flows),
            _route(flow, "flow", self.flow),
            _route(f"{flow}/events", "events", self.events),
            _route(f"{flow}/logs", "flow-logs", self.logs),
            _route("workers", "workers", self.workers),
            _route("queues", "queues", self.queues),
            _route("ledger", "ledger", self.ledger),
            _route("schedules", "schedules", self.schedules),
            _route("pauses", "pauses", self.pauses),
        ]

    def flows(self, request: Request) -> dict[str, Any]:
        flow_filter = _listings.FlowFilter.of(request)
        page = self._state.store.read(lambda each: flow_filter.read(each, self._state.redactor))
        return page.to_dict()

    def flow(self, request: Request) -> dict[str, Any]:
        """Return a flow with its atoms, or without them for `?atoms=0`."""
        with_atoms = request.query_params.get("atoms", "1") not in ("0", "false", "no")
        return self._state.store.flow(_uuid(request)).to_dict(atoms=with_atoms)

    def events(self, request: Request) -> dict[str, Any]:
        """Return a page of events, oldest first. Start a stream of later events at `cursor`."""
        query, store = request.query_params, self._state.store
        limit = _http_errors.int_parameter(request, "limit", _event_history.DEFAULT_LIMIT)
        cursor = store.cursor(_uuid(request))
        page = store.events(_uuid(request), limit, query.get("after") or None)
        return {**page.to_dict(), "cursor": cursor}

    def logs(self, request: Request) -> dict[str, Any]:
        """Return the latest log lines of a flow, or of one task (`?task=`)."""
        task = request.query_params.get("task") or None
        limit = _http_errors.int_parameter(request, "limit", _event_history.DEFAULT_LIMIT)
        lines = self._state.store.logs(_uuid(request), task, min(max(1, limit), _MAX_LINES))
        return {"lines": [line.to_dict() for line in lines]}

    def workers(self, request: Request) -> dict[str, Any]:
        return {"workers": [worker.to_dict() for worker in self._state.monitor.workers()]}

    def queues(self, request: Request) -> dict[str, Any]:
        return {"queues": [queue.to_dict() for queue in self._state.monitor.queues()]}

    def schedules(self, request: Request) -> dict[str, Any]:
        entries, after = _schedule_pages.page(request, self._state)
        rows = [entry.to_dict() for entry in entries]
        for row in rows:
            row["trouble"] = row["trouble"] and self._state.redactor.text(row["trouble"])
        return {"schedules": rows, "after": after}

    def pauses(self, request: Request) -> dict[str, Any]:
        """Return the pauses of task types in force."""
        return {"pauses": [pause.to_dict() for pause in _pause_pages.pauses(self._state)]}

    def ledger(self, request: Request) -> dict[str, Any]:
        page = _fleet_pages.ledger_rows(request, self._state)
        if page is None:
            return {"ledger": False, "rows": [], "after": None}
        return {"ledger": True, "rows": [row.to_dict() for row in page.rows], "after": page.after}


def _uuid(request: Request) -> str:
    return str(request.path_params["uuid"])


def _route(path: str, schema: str, read: Callable[[Request], dict[str, Any]]) -> Route:
    def answer(request: Request) -> Response:
        with _http_errors.as_http_errors():
            return _rendering.SafeJSONResponse({"schema": f"wbengine/{schema}/1", **read(request)})

    return Route(f"/api/v1/{path}", answer)
