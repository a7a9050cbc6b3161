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

_V1: Final = "/api/v1"
#: Lines of logs in one answer.
_MOST_LINES: Final = 5000


class Api:
    """Blocking: Starlette calls it in threads."""

    def __init__(self, app_state: AppState) -> None:
        self._state = app_state

    def routes(self) -> list[Route]:
        return [
            Route(f"{_V1}/flows", self.flows),
            Route(f"{_V1}/flows/{{uuid:uuid}}", self.flow),
            Route(f"{_V1}/flows/{{uuid:uuid}}/events", self.events),
            Route(f"{_V1}/flows/{{uuid:uuid}}/logs", self.logs),
            Route(f"{_V1}/workers", self.workers),
            Route(f"{_V1}/queues", self.queues),
            Route(f"{_V1}/ledger", self.ledger),
            Route(f"{_V1}/schedules", self.schedules),
        ]

    def flows(self, request: Request) -> Response:
        """A page of the list; `after` is what the next one is asked for with."""
        app_state = self._state

        def read() -> dict[str, Any]:
            wanted = listings.Wanted.of(request.query_params)
            page = app_state.store.reading(lambda each: wanted.read(each, app_state.redactor))
            return page.to_dict()

        return _told(read)

    def flow(self, request: Request) -> Response:
        """One flow with its atoms; without them with `?atoms=0`."""
        with_atoms = request.query_params.get("atoms", "1") not in ("0", "false", "no")
        return _told(lambda: self._state.store.flow(_uuid(request)).to_dict(atoms=with_atoms))

    def events(self, request: Request) -> Response:
        """A page of what has happened to a flow, the oldest first; `after` is what the next one is
        asked for with, `cursor` where a stream goes on from the last."""

        def read() -> dict[str, Any]:
            query, store = request.query_params, self._state.store
            limit = http_errors.whole(request, "limit", history.LIMIT)
            cursor = store.cursor(_uuid(request))
            found = store.events(_uuid(request), limit, query.get("after") or None)
            return {**found.to_dict(), "cursor": cursor}

        return _told(read)

    def logs(self, request: Request) -> Response:
        """The latest lines that the tasks of a flow logged; of one of them with `?task=`."""

        def read() -> dict[str, Any]:
            task = request.query_params.get("task") or None
            limit = http_errors.whole(request, "limit", history.LIMIT)
            found = self._state.store.logs(_uuid(request), task, min(max(1, limit), _MOST_LINES))
            return {"schema": "wbengine/flow-logs/1", "lines": [line.to_dict() for line in found]}

        return _told(read)

    def workers(self, request: Request) -> Response:
        def read() -> dict[str, Any]:
            found = [worker.to_dict() for worker in self._state.monitor.workers()]
            return {"schema": "wbengine/workers/1", "workers": found}

        return _told(read)

    def queues(self, request: Request) -> Response:
        def read() -> dict[str, Any]:
            found = [queue.to_dict() for queue in self._state.monitor.queues()]
            return {"schema": "wbengine/queues/1", "queues": found}

        return _told(read)

    def schedules(self, request: Request) -> Response:
        """A page of them, by name; `after` is what the next one is asked for with."""

        def read() -> dict[str, Any]:
            entries, after = schedule_pages.page(request, self._state)
            found = [entry.to_dict() for entry in entries]
            for told in found:
                told["trouble"] = told["trouble"] and self._state.redactor.text(told["trouble"])
            return {"schema": "wbengine/schedules/1", "schedules": found, "after": after}

        return _told(read)

    def ledger(self, request: Request) -> Response:
        """Rows; `after` is what the next page is asked for with."""

        def read() -> dict[str, Any]:
            page = fleet_pages.ledger_rows(request, self._state)
            rows = [] if page is None else [row.to_dict() for row in page.rows]
            after = None if page is None else page.after
            return {
                "schema": "wbengine/ledger/1",
                "ledger": page is not None,
                "rows": rows,
                "after": after,
            }

        return _told(read)


def _uuid(request: Request) -> str:
    return str(request.path_params["uuid"])


def _told(read: Callable[[], dict[str, Any]]) -> Response:
    with http_errors.refused():
        return JSONResponse(read())
