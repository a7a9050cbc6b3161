"""The same as the pages, as JSON for programs: read only, each answer with its schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from wbengine.dashboard import fleet_pages, http_errors, listings, schedule_pages
from wbengine.dashboard.app_state import AppState
from wbengine.views import history

__all__ = ["Api"]

#: Lines of logs in one answer.
_MOST_LINES: Final = 5000


class Api:
    """Blocking: Starlette calls it in threads."""

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
        ]

    def flows(self, request: Request) -> dict[str, Any]:
        """A page of the list; `after` is what the next one is asked for with."""
        wanted = listings.Wanted.of(request)
        page = self._state.store.reading(lambda each: wanted.read(each, self._state.redactor))
        return page.to_dict()

    def flow(self, request: Request) -> dict[str, Any]:
        """One flow with its atoms; without them with `?atoms=0`."""
        with_atoms = request.query_params.get("atoms", "1") not in ("0", "false", "no")
        return self._state.store.flow(_uuid(request)).to_dict(atoms=with_atoms)

    def events(self, request: Request) -> dict[str, Any]:
        """A page of what has happened to a flow, the oldest first; `after` is what the next one is
        asked for with, `cursor` where a stream goes on from the last."""
        query, store = request.query_params, self._state.store
        limit = http_errors.whole(request, "limit", history.LIMIT)
        cursor = store.cursor(_uuid(request))
        found = store.events(_uuid(request), limit, query.get("after") or None)
        return {**found.to_dict(), "cursor": cursor}

    def logs(self, request: Request) -> dict[str, Any]:
        """The latest lines that the tasks of a flow logged; of one of them with `?task=`."""
        task = request.query_params.get("task") or None
        limit = http_errors.whole(request, "limit", history.LIMIT)
        found = self._state.store.logs(_uuid(request), task, min(max(1, limit), _MOST_LINES))
        return {"lines": [line.to_dict() for line in found]}

    def workers(self, request: Request) -> dict[str, Any]:
        return {"workers": [worker.to_dict() for worker in self._state.monitor.workers()]}

    def queues(self, request: Request) -> dict[str, Any]:
        return {"queues": [queue.to_dict() for queue in self._state.monitor.queues()]}

    def schedules(self, request: Request) -> dict[str, Any]:
        """A page of them, by name; `after` is what the next one is asked for with."""
        entries, after = schedule_pages.page(request, self._state)
        found = [entry.to_dict() for entry in entries]
        for each in found:
            each["trouble"] = each["trouble"] and self._state.redactor.text(each["trouble"])
        return {"schedules": found, "after": after}

    def ledger(self, request: Request) -> dict[str, Any]:
        """Rows; `after` is what the next page is asked for with."""
        page = fleet_pages.ledger_rows(request, self._state)
        if page is None:
            return {"ledger": False, "rows": [], "after": None}
        return {"ledger": True, "rows": [row.to_dict() for row in page.rows], "after": page.after}


def _uuid(request: Request) -> str:
    return str(request.path_params["uuid"])


def _route(path: str, schema: str, read: Callable[[Request], dict[str, Any]]) -> Route:
    def answer(request: Request) -> Response:
        with http_errors.refused():
            return JSONResponse({"schema": f"wbengine/{schema}/1", **read(request)})

    return Route(f"/api/v1/{path}", answer)
